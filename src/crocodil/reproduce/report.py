"""One report of all results, readable without the paper: Markdown, HTML, and a summary in JSON.

It is written from rows alone: no model and no judge is needed.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from crocodil.reproduce.document import Block, Picture, Section, Table, Text, as_html, as_markdown, number
from crocodil.reproduce.experiments import (
    Results,
    ablations,
    autoencoder,
    base_bound,
    comparison,
    completions,
    copies,
    demasker_curves,
    generation,
    interpolation,
    register_priors,
    targets,
    timing,
    two_sentences,
)
from crocodil.reproduce.figures import can_draw, draw
from crocodil.reproduce.fixed_protocol import PROTOCOL, TEST_CORPUS, Targets, kept_targets
from crocodil.reproduce.headline_numbers import NEWER_CONDITIONS, summary
from crocodil.reproduce.store import Row, distinct, select
from crocodil.reproduce.sweep import SWEEP
from crocodil.runtime.atomic import whole_file

TITLE = "CRoCoDiL: results of the reproduction"
REPORT, SUMMARY, FIGURES = "report", "summary.json", "figures"
CONDITION_HEADS = {
    "setting": "protocol",
    TEST_CORPUS: "corpus of the test programs",
    PROTOCOL: "sha256 of the protocol",
}


def write_report(results: Results, directory: Path) -> Path:
    """Write report.md with its figures, a self-contained report.html and summary.json; return the HTML path."""
    results = timed(results)
    sections = report(results, kept_targets(directory, results["model"]))
    pictures = [block for section in sections for block in section.blocks if isinstance(block, Picture)]
    drawings = {picture.name: draw(picture.name, picture.panels) for picture in pictures} if can_draw() else {}
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
    """Return the results with the seconds of the timing experiment, which exclude compilation."""
    rows = timing.with_seconds(results.get("generation", ()), results.get("seconds", ()))
    return {**results, "generation": rows} if rows else results


def _write(file: Path, text: str) -> None:
    with whole_file(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


# ---------------------------------------------------------------- the report


def report(results: Results, wanted: Targets | None = None) -> list[Section]:
    """Return all sections in the order of the paper; experiments without rows are named too."""
    sections = [_section(experiment, results) for experiment in _experiments(results)]
    if results.get(base_bound.NAME):
        sections.insert(0, base_bound.show(results[base_bound.NAME]))
    if wanted is not None:
        sections.insert(0, targets.show(wanted, results))
    if results.get("generation"):
        sections.append(generation.show_samples(results["generation"]))
    if results.get(completions.NAME):
        sections.append(completions.show(results[completions.NAME]))
    return [_overview(results), _measures(), *sections, _conditions(results)]


class _Experiment(NamedTuple):
    """A section of the report, and the names of the rows that it shows."""

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
        _Experiment(
            generation.TITLE,
            ("generation",),
            lambda: generation.show(rows("generation"), real, rows(SWEEP), rows("anchor")),
        ),
        _Experiment(copies.TITLE, ("memorisation",), lambda: copies.show(rows("memorisation"))),
        _Experiment(demasker_curves.NOISE_TITLE, ("noise",), lambda: demasker_curves.show_noise(rows("noise"))),
        _Experiment(
            interpolation.TITLE, ("interpolation",), lambda: interpolation.show(rows("interpolation"), real)
        ),
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


def _section(experiment: _Experiment, results: Results) -> Section:
    """Return the section of an experiment, followed by what was not measured."""
    missing = [name for name in experiment.names if not results.get(name)]
    if len(missing) == len(experiment.names):
        choices = generation.choices(results.get(SWEEP, ())) if "generation" in missing else []
        return Section(experiment.title, [*choices, not_measured(*missing)])
    notes = [not_measured(name) for name in missing]
    for name in experiment.names:
        measured = {row["length"] for row in results.get(name, ()) if "length" in row}
        lengths = [length for length in distinct(results["model"], "length") if length not in measured]
        if measured and lengths:
            notes.append(not_measured(name, lengths=lengths))
    section = experiment.show()
    return Section(section.title, [*section.blocks, *notes])


def not_measured(*names: str, lengths: Sequence[int] = ()) -> Text:
    where = f" at length {' and '.join(map(str, lengths))}" if lengths else ""
    return Text(f"**Not measured{where}**: there are no rows of `crocodil reproduce {' '.join(names)}`.")


def _overview(results: Results) -> Section:
    """Describe the model, and give the speed-ups."""
    models = results["model"]
    settings = distinct(models, "setting")
    blocks: list[Block] = [
        Text(
            """A masked diffusion model writes a text by revealing masked tokens, several at a time. CRoCoDiL
            guides it by **registers**: a few vectors that describe the whole text. An encoder computes the
            registers of a text, a demasker writes a text from registers, and a small continuous diffusion
            model, the prior, draws new registers. This report measures each part, and whether guidance makes
            generation cheaper."""
        ),
        Text(
            """**Columns marked "published" are numbers of the paper, for LLaDA-8B on the Python part of
            StarCoder. Model, data and judges differ from ours: compare ratios and the shapes of curves, not
            absolute values.**"""
        ),
    ]
    if "tiny" in settings:
        blocks.append(
            Text(
                """**Protocol tiny: a handful of samples. It only checks that everything runs; the numbers are
                meaningless.**"""
            )
        )
    elif "quick" in settings and "full" not in settings:
        blocks.append(Text("**Protocol quick: fewer samples than in the paper.**"))
    blocks.append(_model_table(models))
    generated = results.get("generation", ())
    blocks += [_base_line(row, select(generated, length=row["length"])) for row in models]
    if results.get("generation"):
        blocks += _headlines(results)
    if not can_draw():
        blocks.append(Text("This report has no figures: `pip install 'crocodil[figures]'`, then write it again."))
    return Section("Overview", blocks)


def _model_table(models: Sequence[Row]) -> Table:
    heads = ["", *(f"length {row['length']}" for row in models)]
    lines = {
        "demasker parameters": "demasker_parameters",
        "encoder parameters": "encoder_parameters",
        "prior parameters": "prior_parameters",
        "conditional prior parameters": "conditional_parameters",
        "registers of the encoder": "registers",
        "register width": "register_width",
        "registers drawn by the prior": "prior_registers",
        "registers used in generation": "guiding_registers",
        "steps of the prior": "prior_steps",
        "steps of the refresh": "refresh_steps",
        "eta of DDIM (0: deterministic)": "eta",
        "scale of perturbed-attention guidance": "pag_scale",
    }
    body = [[name, *(f"{row[key]:,}" for row in models)] for name, key in lines.items()]
    return Table(heads, body, "The model")


def _base_line(row: Row, generated: Sequence[Row]) -> Text:
    """Say whether the base had as much training compute."""
    where = f"Length {row['length']}"
    if generated and not comparison.has_base(generated):
        return Text(f"{where}: no base was measured, so there are no speed-ups.")
    if row["base"] is None:
        return Text(
            f"""**Caution, {where.lower()}:** the model has no base of its own; the demasker without registers
            takes its place. Speed-ups over it prove little."""
        )
    share = row["base_compute_share"]
    if share is None:
        return Text(
            f"""{where}: the base ({row["base"]}) has an unknown training time (give `--run` and `--base-run`)."""
        )
    with_priors = row.get("base_compute_share_with_priors")
    enough = (share if with_priors is None else with_priors) >= 1
    verdict = "at least as much compute" if enough else "**less compute, which flatters the speed-ups**"
    counted = "" if with_priors is None else f", {number(with_priors)} times if the priors are counted too"
    return Text(
        f"""{where}: the base ({row["base"]}) was trained with {number(share)} times the compute of demasker and
        encoder{counted}: {verdict}."""
    )


def _headlines(results: Results) -> list[Block]:
    """Return the speed-ups of every length; the section on generation defines them."""
    blocks: list[Block] = []
    for real in results["reference"]:
        rows = select(results["generation"], length=real["length"])
        if rows:
            blocks += comparison.speedup_tables(rows, real)
    return blocks


def _measures() -> Section:
    """Explain the measures."""
    body = [
        [
            "MAUVE",
            "similarity of samples and real programs, from a judge's last state: mostly shows how texts end",
            "higher, up to 1",
        ],
        ["MAUVE, pooled", "the same, from the mean of the judge's states over all tokens", "higher, up to 1"],
        [
            "Gen-PPL",
            "perplexity of the samples under a judge, a causal language model",
            "lower, at equal entropy",
        ],
        ["bits per byte", "the same per byte, independent of the tokenizer (in the rows only)", "lower"],
        ["entropy", "entropy of the tokens within a text, in nats; low if a text repeats itself", "as real text"],
        ["distinct-2", "share of different token pairs among all pairs of all samples", "as real text"],
        ["valid Python", "share of texts that parse and contain a statement", "as real text"],
        ["CER", "character edits from copy to source, per character of the source", "lower"],
        ["BERTScore", "similarity of the token embeddings of copy and source (F1)", "higher, up to 1"],
        ["calls", "demasker calls per text", "lower"],
        ["NFE", "the paper's cost: demasker calls, other networks weighted by their parameters", "lower"],
        ["NFE by FLOPs", "parameters times positions of all networks, in calls of the base", "lower"],
        ["seconds", "per text within a batch, on the machine that computed the row", "lower"],
    ]
    return Section("Measures", [Table(["measure", "meaning", "better"], body)])


def _conditions(results: Results) -> Section:
    """Return the conditions of the measurements."""
    names = ["length", "model", "setting", "seed", "judge", "embedder", "corpus", "device", "dtype", "commit"]
    columns = [*names, *(name for name in NEWER_CONDITIONS if any(name in row for row in results["model"]))]
    body = [[_cell(row, name) for name in columns] for row in results["model"]]
    heads = [CONDITION_HEADS.get(name, name) for name in columns]
    return Section(
        "Conditions",
        [
            Text(
                """The spread (±) of MAUVE is the standard deviation over clusterings, that of Gen-PPL the
                standard error from quarters of the samples, that of PRDC the standard deviation over
                registers. MAUVE depends on the number of samples: compare only equal numbers, and compare with
                the line of real programs."""
            ),
            Text(
                """All rows, with their judge, seed, number of samples, temperature and commit, are in the
                `.jsonl` files beside this report; `sweep.jsonl` holds all candidates of the tuning."""
            ),
            Text("A text ends at its first EOS token, which waits for the tokens before it (decision D12)."),
            Table(heads, body),
        ],
    )


def _cell(row: Row, name: str) -> str:
    if name != "model":
        return str(row.get(name, number(None)) if name in NEWER_CONDITIONS else row[name])
    return ", ".join(f"{part} {value}" for part, value in row["model"].items() if value is not None)
