"""The committed results belong to the built-in model, and the pages state what rows and runs say."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from crocodil.metrics.text_statistics import parses_as_python
from crocodil.pipeline import Crocodil, Method
from crocodil.presets.changes import with_changes
from crocodil.presets.rates import hours, rate_of
from crocodil.presets.runs import assumed_corpus, preset
from crocodil.reproduce.context import parts, with_base
from crocodil.reproduce.document import as_markdown
from crocodil.reproduce.experiments import read_all
from crocodil.reproduce.experiments.comparison import differences
from crocodil.reproduce.experiments.training_compute import base_compute_share
from crocodil.reproduce.figures import can_draw
from crocodil.reproduce.headline_numbers import summary
from crocodil.reproduce.report import TITLE, report, timed
from crocodil.reproduce.sweep import candidate_of, own_candidate
from crocodil.training.estimate import estimates
from crocodil.training.run_config import Pretrained, read_run_file
from crocodil.training.work import guided_flops

ROOT = Path(__file__).parent.parent
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
README, CARD, PAGE = ROOT / "README.md", ROOT / "src" / "crocodil" / "builtin" / "README.md", DOCS / "results.md"
LOG, QUICKSTART, HOW = DOCS / "research-log.md", DOCS / "quickstart.md", DOCS / "how-it-works.md"
IDS = {README: "README", CARD: "model card", PAGE: "results page"}
NAMES = {"conwithindisc": "ConWithinDisc", "conthendisc": "ConThenDisc"}
every_page = pytest.mark.parametrize("file", IDS, ids=IDS.values())


@pytest.fixture(scope="module")
def rows():
    return timed(read_all(RESULTS))


@pytest.fixture(scope="module")
def found(rows):
    return json.loads(json.dumps(summary(rows), allow_nan=False))


@pytest.fixture(scope="module")
def pipe(rows):
    dtype = getattr(torch, rows["model"][0]["dtype"])
    return with_base(Crocodil.from_pretrained(device="cpu", dtype=dtype), RESULTS / "base")


def prose(file):
    return " ".join(file.read_text().split())


def times(factor):
    return f"{factor:.1f} x" if factor >= 1 else f"{factor:.2f} x"


def test_the_summary_is_what_the_rows_say(found):
    assert found == json.loads((RESULTS / "summary.json").read_text())


@pytest.mark.skipif(not can_draw(), reason="needs matplotlib")
def test_the_report_is_what_the_rows_say(rows):
    pictures = {file.stem: f"figures/{file.name}" for file in (RESULTS / "figures").glob("*.svg")}
    assert as_markdown(TITLE, report(rows), pictures) == (RESULTS / "report.md").read_text()


def test_the_rows_are_of_the_built_in_model_and_of_the_base_beside_them(rows, pipe):
    for row in rows["model"]:
        assert parts(pipe) == row["model"]


def test_the_bases_share_of_compute_follows_from_the_records_of_the_runs(rows, found, pipe):
    training = {"run": read_run_file(RESULTS / "training"), "base": read_run_file(RESULTS / "base")}
    share, with_priors = (base_compute_share(pipe, training, with_priors=priors) for priors in (False, True))
    assert share == pytest.approx(0.90, abs=0.005)
    assert with_priors == pytest.approx(0.74, abs=0.005)
    for row in rows["model"]:
        assert row["base_compute_share"] == pytest.approx(share)
        assert row["base_compute_share_with_priors"] == pytest.approx(with_priors)
    for file in IDS:
        stated = f"{share:.2f} times the compute of demasker and encoder, {with_priors:.2f} times if the denoiser"
        assert stated in prose(file)
        assert "less compute, which flatters the speed-ups" in prose(file)
    assert f"**{share:.2f}** times the compute of demasker and encoder, and {with_priors:.2f} times" in prose(LOG)
    assert "less compute, which flatters the speed-ups" in (RESULTS / "report.md").read_text()


@every_page
def test_the_headline_is_held_against_the_bases_own_best_in_three_units(file, found, rows):
    text = file.read_text().replace("**", "")
    assert (found["own_best_calls"]["256"], found["own_best_calls"]["512"]) == (128, 256)
    for length, methods in found["speedup"].items():
        for method, name in NAMES.items():
            factors = " | ".join(times(methods[method][unit]) for unit in ("flops", "seconds", "nfe"))
            calls = found["at_calls"][length][method]
            before = f"{length} tokens, base at {found['own_best_calls'][length]} calls: "
            where = before if method == Method.CON_WITHIN_DISC else ""
            assert f"| {where}{name}, {calls} calls | {factors} |" in text
    if file == README:
        factors = {length: methods["conwithindisc"] for length, methods in found["speedup"].items()}
        shorter, longer = (f"{factors[length]['flops']:.1f}" for length in ("256", "512"))
        assert f"with {shorter} times fewer FLOPs (512 tokens: {longer})" in text
        shorter, longer = (times(factors[length]["nfe"]).removesuffix(" x") for length in ("256", "512"))
        assert f"NFE: {shorter} times (512 tokens: {longer})" in text


def test_the_papers_factors_stand_beside_its_unit_and_its_target_alone(found):
    text = PAGE.read_text().replace("**", "")
    for length, published in {"256": "6 x", "512": "13 x"}.items():
        own = found["speedup_at_one_call_a_token"][length]
        factors = {name: [times(own[name][unit]) for unit in ("flops", "seconds", "nfe")] for name in own}
        calls = found["at_calls"][length]
        line = f"| {length} tokens: ConWithinDisc, 16 calls | {' | '.join(factors['conwithindisc'])}"
        assert f"{line} (paper: {published}) |" in text
        assert f"| ConThenDisc, {calls['conthendisc']} calls | {' | '.join(factors['conthendisc'])} |" in text
        assert f"| the base itself, stopped at {calls['base']} calls | {' | '.join(factors['base'])} |" in text
    assert len(re.findall(r"paper: \d+ x", text)) == 2
    assert not re.findall(r"paper: \d+ x", CARD.read_text() + README.read_text())


def quality_line(row, name, calls=""):
    cost = f"{row['flop_nfe']:.3g}" if calls else ""
    values = (
        f"{row['mauve']:.3f} ± {row['mauve_spread']:.3f}", f"{row['gen_ppl']:.1f}", f"{row['entropy']:.2f}",
        f"{row['distinct_2']:.3f}", f"{row['parse_share']:.0%}", cost,
    )  # fmt: skip
    return " ".join(f"{name} | {calls} | {' | '.join(values)} |".split())


@pytest.mark.parametrize("file", [PAGE, CARD], ids=["results page", "model card"])
def test_every_line_of_the_quality_table_is_a_row(file, rows):
    names = {**NAMES, "base": "base", "encoded registers": "registers of real programs"}
    lines = {
        length: {quality_line(row, names[row["method"]], row["calls"]) for row in rows["generation"]
                 if row["length"] == length}
        | {quality_line(row, "real programs") for row in rows["reference"] if row["length"] == length}
        for length in (256, 512)
    }  # fmt: skip
    _, shorter, longer = re.split(r"\| \*\*(?:256|512) tokens\*\*: ", file.read_text())
    for length, part in ((256, shorter), (512, longer)):
        stated = [" ".join(line.split()).removeprefix("| ") for line in part.split("\n\n")[0].splitlines()]
        assert len(stated) > 5
        assert [line for line in stated if line not in lines[length]] == []


def test_copies_are_stated_with_their_error_and_the_share_of_exact_ones(rows):
    one_block = {
        (row["length"], row["calls"]): row for row in rows["autoencoder"] if row["block"] == row["length"]
    }
    exact, cer = ({at: row[name] for at, row in one_block.items()} for name in ("exact_share", "cer"))
    longer = f"(512 tokens: {cer[512, 16]:.3f}, {exact[512, 16]:.0%})"
    assert f"(CER) {cer[256, 16]:.3f}, {exact[256, 16]:.0%} exact {longer}" in prose(README)
    assert f"**{cer[256, 16]:.3f}, {cer[256, 64]:.3f}** with 64 registers" in prose(PAGE)
    assert f"{exact[256, 16]:.0%} and {exact[256, 64]:.0%} of the copies are exact" in prose(PAGE)
    assert f"512 tokens: {cer[512, 16]:.3f}, {cer[512, 64]:.3f}; {exact[512, 16]:.0%} and" in prose(PAGE)
    assert f"{exact[512, 64]:.0%} exact" in prose(PAGE)
    shorter, longer = (f"{exact[length, 16]:.0%}, {exact[length, 64]:.0%}" for length in (256, 512))
    assert f"| exact copies among them | {shorter}; {longer} at 512 tokens |" in CARD.read_text()


def test_the_readme_states_the_shares_that_parse(rows):
    share = {
        (row["method"], row["calls"]): f"{row['parse_share']:.0%}"
        for row in rows["generation"]
        if row["length"] == 256
    }
    (real,) = (f"{row['parse_share']:.0%}" for row in rows["reference"] if row["length"] == 256)
    assert share["conwithindisc", 32] == share["conthendisc", 32]
    within, then = share["conwithindisc", 16], share["conthendisc", 16]
    stated = f"{within} of ConWithinDisc and {then} of ConThenDisc samples parse at 16 calls"
    assert f"{stated}, {share['conthendisc', 32]} at 32; real programs {real}" in prose(README)


def test_the_pages_state_the_way_between_two_programs(rows):
    at = {(row["length"], row["mix_weight"]): row for row in rows["interpolation"]}
    (real,) = (row for row in rows["reference"] if row["length"] == 256)
    half, longer, quarter = at[256, 0.5], at[512, 0.5], at[256, 0.25]
    assert (
        f"MAUVE is {half['mauve']:.2f} and Gen-PPL {half['gen_ppl']:.0f} "
        f"(real: {real['mauve']:.2f}, {real['gen_ppl']:.1f})"
    ) in prose(README)
    assert (
        f"MAUVE {half['mauve']:.2f}, Gen-PPL {half['gen_ppl']:.0f} (512 tokens: {longer['mauve']:.2f}, "
        f"{longer['gen_ppl']:.0f}). A quarter of the way: {quarter['mauve']:.2f}, {quarter['gen_ppl']:.1f}"
    ) in prose(PAGE)


def test_the_pages_state_copied_runs_and_seconds_on_a_cpu(found, rows):
    runs = found["memorisation"]["256"]
    own, real = runs["conwithindisc"], runs["real"]
    assert f"has {own['mean']:.1f} tokens on average, real test programs {real['mean']:.1f}" in prose(README)
    assert (
        f"mean {own['mean']:.1f}, longest {own['max']}, {own['long_share']:.1%} over 50; "
        f"real test programs: {real['mean']:.1f}, {real['max']}, {real['long_share']:.1%}"
    ) in prose(PAGE)
    seconds = found["cpu_seconds_per_program"]["256"]
    assert f"{seconds['conwithindisc']:.1f} s per program on two x86-64 cores" in prose(README)
    assert f"ConWithinDisc **{seconds['conwithindisc']:.1f}**, ConThenDisc {seconds['conthendisc']:.1f}" in prose(
        PAGE
    )
    noise = {(row["trained"], row["noise_std"]): row["cross_entropy"] for row in rows["noise"]
             if row["length"] == 256}  # fmt: skip
    with_noise, without = (value for (_, std), value in noise.items() if std == 1.0)
    assert f"noise of 1.0: {with_noise:.2f}; {without:.2f} after 400 more steps" in prose(PAGE)


def test_the_pages_state_how_a_prefix_is_continued():
    texts = [json.loads(line)["text"] for line in (RESULTS / "prompts.jsonl").read_text().splitlines()]
    assert all(text.startswith("def read(path):\n") for text in texts)
    indented = sum(text.removeprefix("def read(path):\n").lstrip("\n").startswith(" ") for text in texts)
    parsed = sum(map(parses_as_python, texts))
    assert f"{indented} of {len(texts)} samples go on indented" in prose(README)
    assert f"{parsed} of these {len(texts)} parse" in prose(README)
    assert f"{indented} of {len(texts)} samples continue the prefix" in prose(PAGE)
    assert f"{parsed} of these {len(texts)} parse" in prose(PAGE)


WHOLE_BATCHES = ("base_loop.num_accumulated=1", "guided_loop.num_accumulated=1")


def test_the_pages_state_memory_and_hours_that_follow_from_estimates_and_measured_rates():
    def of(name, *changes):
        return with_changes(preset(name, assumed_corpus(name)[0], Pretrained()), changes)

    def gigabytes(run, num_devices=1):
        return {part.stage: f"{part.gigabytes:.1f} GB" for part in estimates(run, num_devices=num_devices)}

    small, one_gpu, paper = map(of, ("small", "paper-one-gpu", "paper"))
    readme, quickstart = README.read_text(), QUICKSTART.read_text()
    memory, whole = gigabytes(small), gigabytes(of("small", *WHOLE_BATCHES))
    assert f"| `small` | {memory['guided']}, for a GPU of 8 GB |" in readme
    assert f"in whole batches ({whole['guided']})" in readme
    assert f"| `paper-one-gpu` | {gigabytes(one_gpu)['guided']} |" in readme
    assert f"8 devices: {gigabytes(paper, 8)['guided']} each" in readme
    assert f"{gigabytes(of('small', *WHOLE_BATCHES, 'guided_loop.batch_size=32'))['guided']} at batch 32" in readme
    tokens = small.guided_loop.num_steps * small.guided_loop.batch_size * sum(small.lengths) / len(small.lengths)
    minutes = [tokens / 1453e3 / 60, tokens / 780e3 / 60, small.conditional_loop.num_steps * 0.082 / 60]
    assert f"about {sum(minutes):.0f} minutes measured on one H200" in readme
    for stage, taken in zip(("base", "guided", "conditional"), minutes, strict=True):
        as_measured = "" if whole[stage] == memory[stage] else f"; {whole[stage]} as measured"
        line = rf"{stage} \| {re.escape(memory[stage] + as_measured)} \| [^|]+ \| {taken:.0f} minutes"
        assert re.search(line, quickstart)
    for name in ("laptop", "medium"):
        optional = ("prior", "distilled", "prompted")
        parts = {part.stage: part for part in estimates(of(name)) if part.stage not in optional}
        taken = {stage: hours(part.flops, rate_of(name, stage)) for stage, part in parts.items()}
        largest = max(part.gigabytes for part in parts.values())
        assert re.search(
            rf"`{name}` \| [^|]*{largest:.1f} GB[^|]* \| [^|]*{sum(taken.values()):.1f} hours", readme
        )
        for stage, part in parts.items():
            line = rf"{stage} \| {part.gigabytes:.1f} GB \| [^|]+ \| {taken[stage]:.1f} hours, estimated"
            assert re.search(line, quickstart)
    step_hours = one_gpu.guided_loop.batch_size * 512 / 8884 / 3600
    steps = one_gpu.guided_loop.num_steps
    assert f"{steps * step_hours:.0f} hours on one H200 for the paper's 3 epochs; " in readme
    assert f"{2000 * step_hours:.0f} hours for 2,000 steps" in readme
    assert f"{steps * step_hours:.0f} hours for {steps:,} steps; {2000 * step_hours:.0f} hours" in quickstart
    rate = guided_flops(
        paper.demasker, paper.encoder, length=4096, all_mask_rate=paper.guided_objective.all_mask_rate
    ) / (8 * 0.457 * 798e12)
    days = paper.guided_loop.num_steps * paper.guided_loop.batch_size * rate / 86400
    assert f"{days:.0f} days on 8 H200" in readme
    assert f"{days:.0f} days for {steps:,} steps" in quickstart


def test_the_caveats_state_what_rows_and_log_say(found, rows):
    page, log = prose(PAGE), prose(LOG)
    by_mauve = (f"{found['speedup_by_mauve'][length]['conwithindisc']:.1f}" for length in ("256", "512"))
    assert "ConWithinDisc is {} times cheaper by FLOPs at 256 tokens and {} times at 512".format(*by_mauve) in page
    drawn, _ = rows["prdc"]
    assert f"the recall of drawn registers is {drawn['recall']:.2f}, and 0.975 without it" in page
    comparisons = [
        part
        for length in (256, 512)
        for part in differences([row for row in rows["generation"] if row["length"] == length])
    ]
    (worse,) = (part for part in comparisons if not part.is_no_worse)
    assert len(comparisons) == 6
    assert (
        f"not at a cost of {worse.cost:.0f} (MAUVE {worse.mauve.mean:.3f} ± {worse.mauve.spread:.3f}, "
        f"Gen-PPL {worse.gen_ppl.mean:+.2f} ± {worse.gen_ppl.spread:.2f})"
    ) in page
    mauve = {(row["method"], row["length"]): row["mauve"] for row in rows["generation"] if row["calls"] == 16}
    shorter, longer = (
        [f"{mauve[method, length]:.2f}" for method in ("encoded registers", "conthendisc")]
        for length in (256, 512)
    )
    assert "reach a MAUVE of {} at 16 calls where drawn registers reach {}".format(*shorter) in page
    assert "(512 tokens: {} and {})".format(*longer) in page
    for stated, recorded in (
        ("MAUVE 0.389 and Gen-PPL 23.9 at 16 calls", "| ConThenDisc | 16 | 0.389 ± 0.023 | 23.9 |"),
        ("0.975 without it", "recall from 0.975 to 0.385"),
        ("collapses (MAUVE 0.08)", "0.31, 0.19 and 0.08 at 64, 128 and 256 calls"),
        ("0.35 (ConThenDisc, 16 calls)", "0.619 ± 0.030 | 0.346 ± 0.035 |"),
        ("0.33 (ConWithinDisc)", "0.626 ± 0.008 | 0.332 ± 0.022 |"),
        ("0.05 (base, 256 calls", "0.408 ± 0.027 | 0.054 ± 0.005 |"),
        ("real programs have 0.96", "0.954 ± 0.008 | 0.962 ± 0.011 |"),
    ):
        assert stated in page
        assert recorded in log


def test_rows_name_the_settings_that_their_method_generated_with(rows, pipe):
    for row in rows["cpu-seconds"]:
        assert candidate_of(row) == own_candidate(pipe, Method(row["method"]))
    (copied,) = rows["memorisation"]
    for method, chosen in copied["chosen"].items():
        assert chosen == own_candidate(pipe, Method(method))


def test_the_limits_of_the_built_in_model_are_stated(pipe):
    kept = pipe.settings.drawing.num_registers
    trained = {0, *read_run_file(RESULTS / "base")["guided_objective"]["prefix_lengths"]}
    assert kept not in trained
    for file in IDS:
        assert f"generates with {kept} registers, a prefix length that it was never trained on" in prose(file)
        assert "cannot be rebuilt exactly" in prose(file)
    assert pipe.demasker.config.across_text
    assert "In the built-in model register i has its own position across the text" in prose(HOW)


def test_a_pretrained_start_is_worth_what_its_rows_say():
    programs, *rows = (json.loads(line) for line in (RESULTS / "pretrained-start.jsonl").read_text().splitlines())
    sizes = torch.tensor(programs["bytes"]).double()
    bits = [torch.tensor(row["nats"]).double() / math.log(2) for row in rows]

    def rate(bits):
        """Return bits per byte of all programs together, and the standard error of this ratio over programs."""
        ratio = bits.sum() / sizes.sum()
        error = (bits - ratio * sizes).std() * math.sqrt(len(sizes)) / sizes.sum()
        return f"{ratio:.3f}", f"{error:.3f}"

    page, cells = prose(PAGE), [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if "M | " in line]
    for row, own, stated in zip(rows, bits, cells, strict=True):
        assert 359.9 < row["seconds"] < 361
        assert [cell.strip().replace("*", "") for cell in stated[1:]] == [
            f"{row['parameters'] / 1e6:.0f} M",
            f"{row['learning_rate']:.0e}".replace("e-0", "e-"),
            f"{row['steps']:,}",
            f"{row['tokens'] / 1e6:.0f} M",
            f"{row['epochs']:.1f}",
            "{} ± {}".format(*rate(own)),
            "" if own is bits[0] else "{} ± {}".format(*rate(own - bits[0])),
        ]
    _, fewer, whole, qwen, aligned = bits
    assert "Qwen is {} ± {} better than 16".format(*rate(fewer - qwen)) in page
    assert "({} ± {})".format(*rate(whole - fewer)) in page
    low, high = rows[3]["trials"]
    assert f"had {high['bits']:.3f} bits per byte at 1e-3 and {low['bits']:.3f} at 3e-4" in page
    assert "16 layers are {} ± {} worse than without".format(*rate(aligned - fewer)) in page
    fast, slow = (rows[place]["tokens_per_s"] / 1e3 for place in (1, 4))
    assert f"{slow:.0f} k tokens/s instead of {fast:.0f} k, so {slow / fast:.0%} of the steps" in page
    assert f"{rows[4]['training_programs'] / programs['training_programs'] - 1:.1%} more programs" in page
    for row in rows[2:]:
        assert f"of {row['parent_matrix_rms']:.3f}" in page
