"""A demo of the built-in model: it writes three programs, then encodes and decodes examples/greeting.py.

It runs on the CPU with a fixed seed, so the output is always the same.
"""

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax

from crocodil.cli.display import Totals, difference, fitting
from crocodil.cli.texts import read_texts
from crocodil.metrics import character_error_rate
from crocodil.pipeline import Crocodil

SEED, MAX_LENGTH = 0, 256  # short programs keep the time on a CPU short
CALLS, COPY_CALLS = 32, 16  # copies need fewer
EXAMPLES = Path(__file__).parent


def generate(pipe: Crocodil, console: Console) -> None:
    length = min(MAX_LENGTH, pipe.settings.length)
    console.rule(f"Three programs of up to {length} tokens in {CALLS} calls each, seed {SEED}", align="left")
    made = pipe.generate(3, length=length, calls=CALLS, seed=SEED)
    for text in made.texts:
        console.print(Panel(Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True)))
    console.print(Totals(made).seconds_line(), style="dim")


def autoencode(pipe: Crocodil, console: Console, file: Path) -> None:
    (text,) = read_texts([file])
    text = fitting(pipe, text, file)
    made = pipe.autoencode([text], calls=COPY_CALLS)
    num_registers = pipe.encoder.config.num_registers
    console.rule(f"{file.name}: encoded to {num_registers} registers, decoded in {COPY_CALLS} calls", align="left")
    console.print(Panel(difference(text, made.texts[0], coloured=console.is_terminal)))
    legend = "red: deleted, green: inserted" if console.is_terminal else "[-deleted-], {+inserted+}"
    console.print(
        f"character error rate (CER) {character_error_rate(text, made.texts[0]):.4f}; {legend}", markup=False
    )
    console.print(Totals(made).seconds_line(), style="dim")


def main() -> None:
    pipe, console = Crocodil.from_pretrained(device="cpu"), Console(highlight=False)
    generate(pipe, console)
    autoencode(pipe, console, EXAMPLES / "greeting.py")


if __name__ == "__main__":
    main()
