"""Tables of a page that are written from rows: README, the model card, docs/results.md (decision D69).

A page marks where they stand:

    <!-- report of results: speed-up, quality -->
    ...
    <!-- end of report -->

`crocodil report --out results --page FILE` writes what stands between the two comments. A page may show rows of
several folders. A folder named `-` stands for the first that is given. A test compares the pages with the rows.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from crocodil.metrics import SpeedUp
from crocodil.metrics.text_statistics import parses_as_python
from crocodil.pipeline import Method
from crocodil.processes.plan import TOKENS_PER_CALL
from crocodil.reproduce.document import Block, Table, Text, number, percent, section_markdown, with_spread
from crocodil.reproduce.experiments import Results, targets
from crocodil.reproduce.experiments.comparison import (
    UNITS,
    factor_of,
    has_base,
    most_calls,
    own_best_calls,
    speedups,
    speedups_by_other_rules,
    speedups_by_unit,
)
from crocodil.reproduce.experiments.quality import ORACLE, display_name
from crocodil.reproduce.experiments.timing import with_seconds
from crocodil.reproduce.fixed_protocol import kept_targets
from crocodil.reproduce.store import Row, distinct, select
from crocodil.reproduce.sweep import has_default_settings
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import json_lines

_MARKED = re.compile(
    r"<!-- report of (?P<folder>\S+): (?P<blocks>[a-z, -]+?) -->\n.*?<!-- end of report -->", re.DOTALL
)
ANY_FOLDER = "-"  # in a mark: the folder of the rows that are written first
PROMPTS_FILE = "prompts.jsonl"  # continuations of `PREFIX`, as `crocodil generate --format jsonl` prints them
PREFIX = "def read(path):\n"
GUIDED = (Method.CON_WITHIN_DISC, Method.CON_THEN_DISC)
ENOUGH_COMPUTE = 0.95  # of the base, compared with the model: with less, a page warns


def folders_of(page: str) -> list[str]:
    """Return the folders of the rows that a page shows."""
    return [found["folder"] for found in _MARKED.finditer(page)]


def filled(page: str, results: Results, folder: Path) -> str:
    """Return the page with the parts that are marked for this folder written from these rows."""

    def write(found: re.Match[str]) -> str:
        if found["folder"] not in (folder.as_posix(), ANY_FOLDER):
            return found.group()
        names = found["blocks"].split(", ")
        if unknown := [name for name in names if name not in BLOCKS]:
            raise ValueError(f"a page asks for {unknown[0]!r}: choose from {', '.join(BLOCKS)}")
        blocks = [block for name in names for block in BLOCKS[name](results, folder)]
        return (
            f"<!-- report of {folder.as_posix()}: {found['blocks']} -->\n\n{section_markdown(blocks)}\n\n"
            "<!-- end of report -->"
        )

    return _MARKED.sub(write, page)


def write_page(file: Path, results: Results, folder: Path) -> None:
    """Write the parts of a file that are marked for this folder; it must have some."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist or is not a file")
    page = file.read_text(encoding="utf-8")
    if not {folder.as_posix(), ANY_FOLDER} & set(folders_of(page)):
        mark = f"<!-- report of {folder.as_posix()}: speed-up --> ... <!-- end of report -->"
        raise ValueError(f"{file} marks no place for tables of these rows: {mark} is missing")
    with whole_file(file) as unfinished:
        unfinished.write_text(filled(page, results, folder), encoding="utf-8")


def conditions(results: Results, folder: Path) -> list[Block]:
    """Say who judged how many samples, and whether settings were chosen and a base was measured."""
    (row, *_) = results["model"]
    generated = results.get("generation", ())
    counts = {real["length"]: real["num_samples"] for real in results["reference"]}
    samples = ", ".join(f"{count:,} at {length} tokens" for length, count in counts.items())
    where = f"{row['dtype']} on {row['device']}, seed {row['seed']}"
    sentences = [f"Judge: {row['judge']}. Samples of each row: {samples}; {where}."]
    if generated and has_default_settings(generated):
        sentences.append("Every method has the model's default settings; there was no sweep.")
    if generated and not has_base(generated):
        sentences.append("No base was measured.")
    return [Text(" ".join([*sentences, f"All rows are in `{folder.as_posix()}`."]))]


# ---------------------------------------------------------------- the base, and speed-ups over it


def base_line(results: Results, folder: Path) -> list[Block]:
    """Say how much compute the base had; nothing if it was not measured."""
    (row, *_) = results["model"]
    share, with_priors = row["base_compute_share"], row.get("base_compute_share_with_priors")
    if not has_base(results.get("generation", ())):
        return []
    if row["base"] is None:
        return [Text("The model has no base of its own: its demasker without registers takes the place of one.")]
    if share is None:
        return [Text("It is not recorded how much compute the base had.")]
    priors = "" if with_priors is None else f", and {with_priors:.2f} times that of demasker, encoder and denoiser"
    least = share if with_priors is None else with_priors
    verdict = "" if least >= ENOUGH_COMPUTE else " That is less, so the speed-ups look larger than they are."
    took = f"The training of the base took {share:.2f} times the compute of demasker and encoder{priors}."
    return [Text(took + verdict)]


def speedup(results: Results, folder: Path) -> list[Block]:
    """Compare with the base at its own best number of calls."""
    body = []
    for rows, real in _with_base(results):
        by_method = speedups_by_unit(rows, real)
        where = [str(real["length"]), str(own_best_calls(rows, real))]
        body += [[*where, *_speedup_cells(method, by_method[method])] for method in _guided(by_method)]
    if not body:
        return [Text("Speed-ups are not measured yet: there are no rows of a base for this model.")]
    return [Table(_unit_heads(results), body)]


def speedup_per_token(results: Results, folder: Path) -> list[Block]:
    """Compare with the base at one call per token, as the paper does."""
    body = []
    for rows, real in _with_base(results):
        length = real["length"]
        if most_calls(rows) < length:
            continue
        by_method = speedups_by_unit(rows, real, calls=length)
        methods = (*_guided(by_method), str(Method.BASE))
        body += [[str(length), str(length), *_speedup_cells(method, by_method[method])] for method in methods]
    return [Table(_unit_heads(results), body)] if body else []


def other_rules(results: Results, folder: Path) -> list[Block]:
    """Return the speed-ups by FLOPs under other rules of matching, with the calls of the method."""
    heads, columns = [""], []
    for rows, real in _with_base(results):
        by_rule = speedups_by_other_rules(rows, real)
        for method in _guided(by_rule["the rule"]):
            heads.append(f"{real['length']} tokens, {display_name(method)}")
            columns.append({rule: _with_calls(by_method[method]) for rule, by_method in by_rule.items()})
    rules = columns[0] if columns else ()
    return [Table(heads, [[rule, *(column[rule] for column in columns)] for rule in rules])] if rules else []


def speedup_by_batch(results: Results, folder: Path) -> list[Block]:
    """Compare by the clock, in small batches and in the largest that was timed."""
    small, large = results.get("batch-seconds", ()), results.get("seconds", ())
    if not small or not large:
        return []
    sizes, body = distinct(small, "batch"), []
    for rows, real in _with_base(results):
        timed = [*(with_seconds(rows, select(small, batch=size)) for size in sizes), rows]
        by_size = [speedups(points, real, unit="seconds") for points in timed]
        for method in _guided(by_size[0]):
            cells = (_with_milliseconds(by_method[method]) for by_method in by_size)
            body.append([str(real["length"]), display_name(method), *cells])
    heads = [f"batches of {size}" for size in [*sizes, max(row["num_samples"] for row in large)]]
    return [Table(["tokens", "method", *heads], body)] if body else []


def _with_milliseconds(speedup: SpeedUp | None) -> str:
    return "-" if speedup is None else f"{_times(speedup.factor)}, {1000 * speedup.method.nfe:.0f} ms"


def _with_calls(speedup: SpeedUp | None) -> str:
    return "no match" if speedup is None else f"{_times(speedup.factor)}, {speedup.method.calls} calls"


def _lengths(results: Results) -> Iterator[tuple[list[Row], Row]]:
    """Yield the rows of generated programs and of real programs, by length."""
    for real in results["reference"]:
        rows = select(results.get("generation", ()), length=real["length"])
        if rows:
            yield rows, real


def _with_base(results: Results) -> Iterator[tuple[list[Row], Row]]:
    """Yield the same of the lengths at which the base was measured."""
    return ((rows, real) for rows, real in _lengths(results) if has_base(rows))


def _guided(by_method: Mapping[str, object]) -> list[str]:
    """Return the guided methods; those of compared models come last."""
    of_model = [str(method) for method in GUIDED if method in by_method]
    return [*of_model, *(name for name in by_method if name not in (*of_model, str(Method.BASE)))]


def _unit_heads(results: Results) -> list[str]:
    batches = {row["num_samples"] for row in results.get("seconds", ())}
    clock = f"by the clock, batches of {max(batches)}" if batches else "by the clock"
    return ["tokens", "calls of the base", "method", "by FLOPs", clock, "in the paper's NFE"]


def _speedup_cells(method: str, by_unit: Mapping[str, SpeedUp | None]) -> list[str]:
    """Return the method with its calls, and its speed-ups; another unit may have another cheapest point."""
    name, matched = "base" if method == Method.BASE else display_name(method), by_unit["flops"]
    if matched is None:
        return [f"{name}, no match", *["-"] * len(UNITS)]
    calls = matched.method.calls
    others = (
        f" ({one.method.calls} calls)" if one is not None and one.method.calls != calls else ""
        for one in map(by_unit.get, UNITS)
    )
    cells = (_times(factor_of(by_unit[unit])) + other for unit, other in zip(UNITS, others, strict=True))
    return [f"{name}, {calls} calls", *cells]


def _times(factor: float | None) -> str:
    if factor is None:
        return "-"
    return f"{factor:.1f} x" if factor >= 1 else f"{factor:.2f} x"


# ---------------------------------------------------------------- quality

QUALITY_HEADS = ("", "calls", "MAUVE", "Gen-PPL", "entropy", "distinct-2", "parses", "cost by FLOPs")


def quality(results: Results, folder: Path) -> list[Block]:
    """Return the base, guided methods and real programs, by length."""
    body = []
    for rows, real in _lengths(results):
        anchors = select(results.get("anchor", ()), length=real["length"])
        for index, row in enumerate([*_shown(rows, real), real, *anchors]):
            where = f"**{real['length']} tokens**: " if index == 0 else ""
            body.append([f"{where}{_name(row, real)}", *_quality_cells(row)])
    return [Table(QUALITY_HEADS, body)] if body else [Text("Generated programs are not measured.")]


def quality_in_short(results: Results, folder: Path) -> list[Block]:
    """Return the first lines of a page: one length, few points, the measures that a stranger knows."""
    for rows, real in _lengths(results):
        usual = max(1, real["length"] // TOKENS_PER_CALL)
        lines = [row for row in _shown(rows, real) if row["calls"] <= usual or row["method"] == Method.BASE]
        body = [[_name(row, real), *_quality_cells(row, in_short=True)] for row in [*lines, real]]
        return [Table([head for head in QUALITY_HEADS if head != "distinct-2"], body, f"{real['length']} tokens")]
    return [Text("Generated programs are not measured.")]


def _shown(rows: Sequence[Row], real: Row) -> list[Row]:
    """Return the base at three numbers of calls, and guided methods where they match it and with more calls."""
    usual = max(1, real["length"] // TOKENS_PER_CALL)
    matched = speedups(rows, real) if has_base(rows) else {}
    of_base = {usual, 4 * usual, own_best_calls(rows, real), most_calls(rows)} if has_base(rows) else set()
    lines = [row for row in select(rows, method=str(Method.BASE)) if row["calls"] in of_base]
    for method in _guided(dict.fromkeys(distinct(rows, "method"))):
        match = matched.get(method)
        wanted = (
            {usual} if method == ORACLE else {16, usual, 2 * usual} | ({match.method.calls} if match else set())
        )
        lines += [row for row in select(rows, method=method) if row["calls"] in wanted]
    return lines


def _name(row: Row, real: Row) -> str:
    """Name a line: a method, test programs against validation programs, or one half of them against the other."""
    if "method" in row:
        return display_name(row["method"])
    return "real programs of other packages" if row is real else "real programs of the same packages"


def _quality_cells(row: Row, *, in_short: bool = False) -> list[str]:
    mauve = f"{row['mauve']:.2f}" if in_short else with_spread(row["mauve"], row["mauve_spread"])
    if row.get("mauve_pooled") is not None and not in_short:
        mauve += f" (pooled {number(row['mauve_pooled'])})"
    return [
        str(row.get("calls", "")), mauve, number(row["gen_ppl"]), f"{row['entropy']:.2f}",
        *([] if in_short else [number(row["distinct_2"])]), percent(row["parse_share"]),
        number(row["flop_nfe"]) if "method" in row else "",
    ]  # fmt: skip


# ---------------------------------------------------------------- what else was measured


def measurements(results: Results, folder: Path) -> list[Block]:
    """Return one line for each thing that the model can do, as far as there are rows."""
    lines = [
        *_parameters(results), *_copies(results), *_parsing(results), *_interpolated(results), *_copied(results),
        *_continued(folder), *_bound(results), *_cpu_seconds(results),
    ]  # fmt: skip
    return [Table(("", "this model", "for comparison"), lines)]


Line = list[str]


def _parameters(results: Results) -> Iterator[Line]:
    (row, *_) = results["model"]
    parts = {"demasker": "demasker", "encoder": "encoder", "prior": "prior", "conditional": "denoiser"}
    counts = {shown: row[f"{name}_parameters"] for name, shown in parts.items() if row[f"{name}_parameters"]}
    each = ", ".join(f"{name} {count / 1e6:.0f} M" for name, count in counts.items())
    yield [f"parameters: {each}", f"{sum(counts.values()) / 1e6:.0f} M", ""]


def _copies(results: Results) -> Iterator[Line]:
    registers = results["model"][0]["registers"]
    for length in distinct(results.get("autoencoder", ()), "length"):
        wanted = max(1, length // TOKENS_PER_CALL)
        one_block = select(results["autoencoder"], length=length, block=length)
        if not one_block:  # the run was stopped before it measured them
            continue
        row = min(one_block, key=lambda row: abs(math.log(row["calls"] / wanted)))
        what = f"copies of programs through {registers} registers, {length} tokens, {row['calls']} calls"
        yield [
            f"{what}: character error rate (CER), exact copies",
            f"{row['cer']:.3f}, {percent(row['exact_share'])}",
            "",
        ]


def _parsing(results: Results) -> Iterator[Line]:
    for rows, real in _lengths(results):
        length, calls = real["length"], max(1, real["length"] // TOKENS_PER_CALL)
        at = {row["method"]: percent(row["parse_share"]) for row in select(rows, length=length, calls=calls)}
        shares = ", ".join(f"{display_name(method)} {at[method]}" for method in GUIDED if method in at)
        yield [
            f"samples that parse, {length} tokens, {calls} calls",
            shares,
            _of_real(percent(real["parse_share"])),
        ]


def _interpolated(results: Results) -> Iterator[Line]:
    for row in select(results.get("interpolation", ()), mix_weight=0.5):
        (real,) = select(results["reference"], length=row["length"])
        cells = [f"{part['mauve']:.2f}, {part['gen_ppl']:.3g}" for part in (row, real)]
        what = f"half way between two programs, {row['length']} tokens: MAUVE, Gen-PPL"
        yield [what, cells[0], _of_real(cells[1])]


def _copied(results: Results) -> Iterator[Line]:
    rows = results.get("memorisation", ())
    for row in rows:
        where = f"{row['length']} tokens: " if len(rows) > 1 else ""
        runs = {name: f"{length['mean']:.1f}, {length['max']}" for name, length in row["runs"].items()}
        what = "longest token sequence shared with a training program (below 16 counts as 0): mean, longest"
        by_method = ", ".join(f"{display_name(method)} {runs[method]}" for method in GUIDED if method in runs)
        yield [where + what, by_method, _of_real(runs["real"])]


def _continued(folder: Path) -> Iterator[Line]:
    file = folder / PROMPTS_FILE
    if file.is_file():
        texts = [json.loads(line)["text"] for line in json_lines(file.read_text(encoding="utf-8"))]
        indented = sum(text.removeprefix(PREFIX).lstrip("\n").startswith(" ") for text in texts)
        what = "samples that begin with `def read(path):` and a line break: next line indented, text parses"
        yield [what, f"{indented} of {len(texts)}, {sum(map(parses_as_python, texts))} of {len(texts)}", ""]


def _bound(results: Results) -> Iterator[Line]:
    for row in results.get("likelihood", ()):
        what = f"bound of the base, {row['length']} tokens, {row['split']} programs: bits per byte"
        yield [what, f"{row['bits_per_byte']:.3f}", ""]


def _cpu_seconds(results: Results) -> Iterator[Line]:
    rows = results.get("cpu-seconds", ())
    for length in distinct(rows, "length"):
        at = {row["method"]: row for row in select(rows, length=length)}
        seconds = ", ".join(
            f"{display_name(method)} {at[method]['cpu_seconds']:.1f}" for method in GUIDED if method in at
        )
        row = next(iter(at.values()))
        what = f"seconds per program, {length} tokens, {row['calls']} calls, {row['threads']} threads"
        yield [f"{what} of {row['machine']}", seconds, ""]


def _of_real(cell: str) -> str:
    return f"real programs {cell}"


def reached(results: Results, folder: Path) -> list[Block]:
    """Return the targets of the protocol file by which the rows were measured, if they were measured by one."""
    wanted = kept_targets(folder, results["model"])
    return [] if wanted is None else list(targets.show(wanted, results).blocks)


BLOCKS: Mapping[str, Callable[[Results, Path], Sequence[Block]]] = {
    "conditions": conditions,
    "base": base_line,
    "speed-up": speedup,
    "speed-up per token": speedup_per_token,
    "speed-up by other rules": other_rules,
    "speed-up by batch": speedup_by_batch,
    "quality": quality,
    "quality in short": quality_in_short,
    "measurements": measurements,
    "targets": reached,
}
