"""The model that ships with the package writes three programs, and repeats one of ours from its registers alone.

On a CPU and with one seed, so that it says the same everywhere.
"""

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax

from crocodil.cli.sample import read_text
from crocodil.cli.texts import difference, fitting, seconds_line
from crocodil.metrics import character_error_rate
from crocodil.pipeline import Crocodil

SEED, CALLS, LONGEST = 0, 16, 256  # LONGEST: tokens of a program, to keep a CPU's time short
EXAMPLES = Path(__file__).parent


def generate(pipe: Crocodil, console: Console) -> None:
    length = min(LONGEST, pipe.settings.length)
    console.rule(f"Three programs of up to {length} tokens in {CALLS} calls each, seed {SEED}", align="left")
    made = pipe.generate(3, method="conwithindisc", length=length, calls=CALLS, seed=SEED)
    for text in made.texts:
        console.print(Panel(Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True)))
    console.print(seconds_line(made), style="dim")


def autoencode(pipe: Crocodil, console: Console, file: Path) -> None:
    text = fitting(pipe, read_text(file), file)
    made = pipe.autoencode([text], calls=CALLS)
    num_registers = pipe.encoder.config.num_registers
    console.rule(f"{file.name}: to {num_registers} registers and back in {CALLS} calls", align="left")
    console.print(Panel(difference(text, made.texts[0], coloured=console.is_terminal)))
    legend = "red was lost, green came instead" if console.is_terminal else "[-lost-], {+came instead+}"
    console.print(f"CER {character_error_rate(text, made.texts[0]):.4f}: {legend}", markup=False)
    console.print(seconds_line(made), style="dim")


def main() -> None:
    pipe, console = Crocodil.from_pretrained(device="cpu"), Console(highlight=False)
    generate(pipe, console)
    autoencode(pipe, console, EXAMPLES / "greeting.py")


if __name__ == "__main__":
    main()
