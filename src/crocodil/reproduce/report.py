"""One report of all results, readable without the paper: Markdown, HTML, and a summary for machines.

From rows alone: neither model nor judge is needed.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import crocodil
from crocodil.processes.plan import TOKENS_PER_CALL
from crocodil.reproduce.document import Block, Picture, Section, Table, Text, as_html, as_markdown, number
from crocodil.reproduce.experiments import (
    ablations,
    autoencoder,
    copies,
    demasker_curves,
    generation,
    interpolation,
    register_priors,
    two_sentences,
)
from crocodil.reproduce.figures import can_draw, draw
from crocodil.reproduce.store import Row, distinct, select
from crocodil.runtime.atomic import whole_file

Results: TypeAlias = Mapping[str, Sequence[Row]]

TITLE = "CRoCoDiL, reproduced"
REPORT, SUMMARY, FIGURES = "report", "summary.json", "figures"


def write_report(results: Results, directory: Path) -> Path:
    """report.md with its figures, report.html with everything inside, summary.json; the page's path."""
    results = timed(results)
    sections = report(results)
    pictures = [block for section in sections for block in section.blocks if isinstance(block, Picture)]
    drawings = {one.name: draw(one.name, one.panels) for one in pictures} if can_draw() else {}
    (directory / FIGURES).mkdir(parents=True, exist_ok=True)
    files = {}
    for name, svg in drawings.items():
        files[name] = f"{FIGURES}/{name}.svg"
        _write(directory / files[name], svg)
    _write(directory / f"{REPORT}.md", as_markdown(TITLE, sections, files))
    _write(directory / f"{REPORT}.html", as_html(TITLE, sections, drawings))
    _write(directory / SUMMARY, json.dumps(summary(results), indent=2) + "\n")
    return directory / f"{REPORT}.html"


def timed(results: Results) -> Results:
    """Generation with the seconds of the experiment of this name: its own were spent on making ready, too."""
    rows = generation.by_the_clock(results.get("generation", ()), results.get("seconds", ()))
    return {**results, "generation": rows} if rows else results


def _write(file: Path, text: str) -> None:
    with whole_file(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


# ---------------------------------------------------------------- the report


def report(results: Results) -> list[Section]:
    """What was measured, in the order of the paper; what was not is named."""
    sections = [_section(one, results) for one in _experiments(results)]
    if results.get("generation"):
        sections.append(generation.show_samples(results["generation"]))
    return [_at_a_glance(results), _words(), *sections, _how(results)]


class _Experiment(NamedTuple):
    """A section, from the rows of these names: of the first at least."""

    title: str
    names: tuple[str, ...]
    show: Callable[[], Section]


def _experiments(results: Results) -> list[_Experiment]:
    real = results["reference"]

    def rows(name: str) -> Sequence[Row]:
        return results.get(name, ())

    return [
        _Experiment(two_sentences.TITLE, ("two-sentences",), lambda: two_sentences.show(rows("two-sentences"))),
        _Experiment(
            demasker_curves.CURVES_TITLE, ("demasker",), lambda: demasker_curves.show_curves(rows("demasker"))
        ),
        _Experiment(autoencoder.TITLE, ("autoencoder",), lambda: autoencoder.show(rows("autoencoder"))),
        _Experiment(generation.TITLE, ("generation",), lambda: generation.show(rows("generation"), real)),
        _Experiment(copies.TITLE, ("memorisation",), lambda: copies.show(rows("memorisation"))),
        _Experiment(demasker_curves.NOISE_TITLE, ("noise",), lambda: demasker_curves.show_noise(rows("noise"))),
        _Experiment(interpolation.TITLE, ("interpolation",), lambda: interpolation.show(rows("interpolation"))),
        _Experiment(
            register_priors.TITLE, ("prdc", "psnr"), lambda: register_priors.show(rows("psnr"), rows("prdc"))
        ),
        _Experiment(
            ablations.REGISTER_COUNT_TITLE,
            ("register-count",),
            lambda: ablations.show_register_count(rows("register-count"), real),
        ),
        _Experiment(ablations.REFRESH_TITLE, ("refresh",), lambda: ablations.show_refresh(rows("refresh"), real)),
        _Experiment(
            ablations.VARIANTS_TITLE,
            ("variants", "variant-autoencoders"),
            lambda: ablations.show_variants(rows("variants"), rows("variant-autoencoders"), real),
        ),
    ]


def _section(one: _Experiment, results: Results) -> Section:
    """The experiment as it shows itself, and what of it is missing."""
    missing = [name for name in one.names if not results.get(name)]
    if len(missing) == len(one.names):
        return Section(one.title, [not_measured(*missing)])
    shown = one.show()
    lengths = distinct(results["model"], "length")
    absent = [not_measured(name) for name in missing]
    for name in one.names:
        known = {row["length"] for row in results.get(name, ()) if "length" in row}
        if known and (others := [length for length in lengths if length not in known]):
            absent.append(not_measured(name, lengths=others))
    return Section(shown.title, [*shown.blocks, *absent])


def not_measured(*names: str, lengths: Sequence[int] = ()) -> Text:
    where = f" at length {' and '.join(map(str, lengths))}" if lengths else ""
    return Text(f"**Not measured{where}**: no rows of `crocodil reproduce {' '.join(names)}`.")


def _at_a_glance(results: Results) -> Section:
    """What the model is, and the headline numbers."""
    models = results["model"]
    settings = distinct(models, "setting")
    blocks: list[Block] = [
        Text(
            """CRoCoDiL guides a masked diffusion model (which writes a text by revealing hidden tokens, several at
            a time) by **registers**: a few vectors that say what the whole text is about. An encoder finds the
            registers of a text, a demasker writes a text from registers, and a small continuous diffusion, the
            prior, invents new registers. This report measures each part, and asks whether guidance makes
            generation cheaper."""
        ),
        Text(
            """**Columns marked published are of LLaDA-8B on StarCoder's Python, other data and other judges.
            Absolute values do not compare with ours; shapes of curves and ratios do.**"""
        ),
    ]
    if "tiny" in settings:
        blocks.append(
            Text(
                """**Setting tiny: a handful of samples. This checks that everything runs; the numbers mean
                nothing.**"""
            )
        )
    elif "full" not in settings:
        blocks.append(Text("**Setting quick: fewer samples than the paper's protocol.**"))
    blocks.append(_model_table(models))
    blocks += [_base_line(row) for row in models]
    if results.get("generation"):
        blocks += _headlines(results)
    if not can_draw():
        blocks.append(
            Text("No figures: `pip install 'crocodil[figures]'` and `crocodil reproduce report` draw them.")
        )
    return Section("At a glance", blocks)


def _model_table(models: Sequence[Row]) -> Table:
    heads = ["", *(f"length {row['length']}" for row in models)]
    lines = {
        "demasker, parameters": "demasker_parameters",
        "encoder, parameters": "encoder_parameters",
        "prior, parameters": "prior_parameters",
        "conditional prior, parameters": "conditional_parameters",
        "registers": "registers",
        "width of a register": "register_width",
        "registers that the prior draws": "prior_registers",
        "of these, registers that guide": "guiding_registers",
        "steps of the prior": "prior_steps",
        "steps of a refresh": "refresh_steps",
        "share of fresh noise in them (eta)": "eta",
        "pag_scale": "pag_scale",
    }
    body = [[name, *(f"{row[key]:,}" for row in models)] for name, key in lines.items()]
    return Table(heads, body, "The model")


def _base_line(row: Row) -> Text:
    """Whether the comparison with the base is fair."""
    where = f"Length {row['length']}"
    if row["base"] is None:
        return Text(
            f"""**Beware, {where.lower()}:** the model has no base trained by itself; the demasker with an empty
            prefix stands in. Speed-ups against it prove little."""
        )
    share = row["base_compute_share"]
    if share is None:
        return Text(
            f"""{where}: the base is the one {row["base"]}; how long it was trained is not known (`--run`,
            `--base-run` would tell)."""
        )
    fair = "at least the compute" if share >= 1 else "**less compute, which flatters the speed-ups**"
    with_priors = row.get("base_compute_share_with_priors")
    counted = "" if with_priors is None else f" ({number(with_priors)} times where the priors count too)"
    return Text(
        f"""{where}: the base, the one {row["base"]}, was trained with {number(share)} times the compute of
        demasker and encoder{counted}: {fair}."""
    )


def _headlines(results: Results) -> list[Block]:
    """The speed-ups of every length, in three units; a section of its own says how they are found."""
    blocks: list[Block] = []
    for real in results["reference"]:
        rows = select(results["generation"], length=real["length"])
        if rows:
            blocks += generation.speedup_tables(rows, real)
    return blocks


def _words() -> Section:
    """What the measures mean."""
    body = [
        [
            "MAUVE",
            "do samples as a whole resemble real programs? clusters of a judge's state at the last token, "
            "which says most of all how a text ends",
            "higher, up to 1",
        ],
        ["MAUVE, pooled", "the same by the mean of the judge's states over all tokens", "higher, up to 1"],
        ["Gen-PPL", "how surprised a judge (a causal language model) is by each next token", "lower, if diverse"],
        ["bits per byte", "the same surprise for each byte: in the rows, and independent of tokens", "lower"],
        [
            "entropy",
            "variety of the tokens within a text, in nats; low where a text repeats itself",
            "as real text",
        ],
        ["distinct-2", "different pairs of tokens among all pairs of all samples", "as real text"],
        ["is Python", "share of texts that parse and hold a statement", "as real text"],
        ["CER", "character edits from copy to source, per character of the source", "lower"],
        ["BERTScore", "similarity of token embeddings of copy and source (F1)", "higher, up to 1"],
        ["calls", "of the demasker, for one text", "lower"],
        ["NFE", "the paper's cost: demasker calls, those of priors by their share of parameters", "lower"],
        ["NFE by FLOPs", "parameters x positions of all networks, in calls of the base", "lower"],
        ["seconds", "for a text in a batch, on the machine that computed the row", "lower"],
    ]
    return Section("Words", [Table(["measure", "meaning", "better"], body)])


def _how(results: Results) -> Section:
    """Under which conditions all this was measured."""
    conditions = ("length", "model", "setting", "seed", "judge", "embedder", "corpus", "device", "dtype")
    heads = [*conditions, "ends", "commit"]
    body = [[_parts(row) if name == "model" else str(row[name]) for name in heads] for row in results["model"]]
    return Section(
        "How it was measured",
        [
            Text(
                """Spreads (±): of MAUVE, the standard deviation over clusterings; of Gen-PPL, the standard error
                from quarters of the samples; of PRDC, from register to register. MAUVE depends on the number of
                samples: compare at equal numbers only, and with the line of real programs."""
            ),
            Text(
                """Every row of every table, with its judge, seed, number of samples, temperature and commit, lies
                in a `.jsonl` beside this report; `sweep.jsonl` holds what the choices were made from."""
            ),
            Table(heads, body),
        ],
    )


def _parts(row: Row) -> str:
    return ", ".join(f"{name} {mark}" for name, mark in row["model"].items() if mark is not None)


# ---------------------------------------------------------------- the summary


def summary(results: Results) -> dict[str, Any]:
    """The headline numbers for machines: what all models share, and every measure by length."""
    models = results["model"]
    lengths = {str(row["length"]): _of_length(results, row["length"]) for row in models}
    return {
        "version": crocodil.__version__,
        **{name: _common(models, name) for name in ("setting", "judge", "embedder", "seed", "corpus")},
        **{name: {length: measure(own) for length, own in lengths.items()} for name, measure in MEASURES.items()},
    }


def _of_length(results: Results, length: int) -> Results:
    return {name: select(rows, length=length) for name, rows in results.items()}


def _common(models: Sequence[Row], name: str) -> Any:
    """What all models share; a list where they differ."""
    values = distinct(models, name)
    return values[0] if len(values) == 1 else values


def _speedups(own: Results, *, a_token: bool = False) -> dict[str, dict[str, float | None]]:
    """At the base's own best, or at one call a token; by method and unit, null where no point matches."""
    if not own.get("generation"):
        return {}
    (real,) = own["reference"]
    found = generation.speedups_by_unit(own["generation"], real, calls=real["length"] if a_token else None)
    return {method: {unit: generation.factor_of(one) for unit, one in of.items()} for method, of in found.items()}


def _speedups_by_mauve(own: Results) -> dict[str, float | None]:
    """By FLOPs, where MAUVE alone must match."""
    if not own.get("generation"):
        return {}
    found = generation.speedups_by_mauve(own["generation"], own["reference"][0])
    return {method: generation.factor_of(one) for method, one in found.items()}


def _points(own: Results) -> dict[str, Row]:
    """Of every method the point that matches the base, or else the one nearest to the default number of calls."""
    rows, (real,) = own.get("generation", ()), own["reference"]
    found = generation.speedups(rows, real) if rows else {}
    points = {}
    for method in distinct(rows, "method"):
        match = found.get(method)
        wanted = max(1, real["length"] // TOKENS_PER_CALL) if match is None else match.method.calls
        points[method] = min(select(rows, method=method), key=lambda row: abs(math.log(row["calls"] / wanted)))
    return points


def _by_method(own: Results, name: str) -> dict[str, Any]:
    return {**{who: row[name] for who, row in _points(own).items()}, "real": own["reference"][0].get(name)}


# Of the results of one length; `at_calls` says which point of a method the two measures after it are of.
MEASURES: Mapping[str, Callable[[Results], Any]] = {
    "model": lambda own: own["model"][0]["model"],
    "prior_steps": lambda own: own["model"][0]["prior_steps"],
    "refresh_steps": lambda own: own["model"][0]["refresh_steps"],
    "eta": lambda own: own["model"][0]["eta"],
    "pag_scale": lambda own: own["model"][0]["pag_scale"],
    "num_samples": lambda own: own["reference"][0]["num_samples"],
    "base_compute_share": lambda own: {
        "demasker and encoder": own["model"][0]["base_compute_share"],
        "with priors": own["model"][0].get("base_compute_share_with_priors"),
    },
    "own_best_calls": lambda own: (
        generation.own_best_calls(own["generation"], own["reference"][0]) if own.get("generation") else None
    ),
    "speedup": _speedups,
    "speedup_at_one_call_a_token": partial(_speedups, a_token=True),
    "speedup_by_mauve": _speedups_by_mauve,
    "at_calls": lambda own: {who: row["calls"] for who, row in _points(own).items()},
    "parse_share": partial(_by_method, name="parse_share"),
    "entropy": partial(_by_method, name="entropy"),
    "autoencoder_cer": lambda own: {
        str(row["calls"]): row["cer"] for row in own.get("autoencoder", ()) if row["block"] == row["length"]
    },
    "cpu_seconds_per_program": lambda own: {
        row["method"]: row["cpu_seconds"] for row in own.get("cpu-seconds", ())
    },
    "memorisation": lambda own: next((row["runs"] for row in own.get("memorisation", ())), {}),
}
