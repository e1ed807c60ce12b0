"""Committed rows belong to their model, and the pages state what rows and runs say.

`results/first/` has the rows of the first model that the package contained, `results/second/` those of the second,
and `results/second-defaults/` its rows with default settings, on other test programs. The pages name the folders
in their marks (`crocodil.reproduce.pages`).
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from crocodil.checkpoints.format import model_config
from crocodil.metrics.text_statistics import parses_as_python
from crocodil.objectives import DistilObjective
from crocodil.pipeline import Crocodil, Method
from crocodil.pipeline.card import NOT_YET_MEASURED
from crocodil.pipeline.settings import BUILTIN, model_folder, read_settings, settings_file
from crocodil.presets.assumed import assumed_corpus
from crocodil.presets.changes import with_changes
from crocodil.presets.rates import hours, rate_of
from crocodil.presets.runs import preset
from crocodil.reproduce.context import parts, with_base
from crocodil.reproduce.document import as_markdown
from crocodil.reproduce.experiments import read_all
from crocodil.reproduce.experiments.comparison import differences, speedups_by_mauve, speedups_by_other_rules
from crocodil.reproduce.experiments.frontiers import frontier_table
from crocodil.reproduce.experiments.targets import lines
from crocodil.reproduce.experiments.training_compute import base_compute_share, shapes_of
from crocodil.reproduce.figures import can_draw
from crocodil.reproduce.fixed_protocol import kept_targets
from crocodil.reproduce.headline_numbers import summary
from crocodil.reproduce.pages import GUIDED, filled, folders_of, write_page
from crocodil.reproduce.report import TITLE, report, timed
from crocodil.reproduce.store import select
from crocodil.reproduce.sweep import decoding_row, own_settings
from crocodil.runtime.config import read_as
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import num_parameters
from crocodil.training.estimate import estimates
from crocodil.training.run_config import Pretrained, read_run_file
from crocodil.training.spent import flops_of_run, planned_flops, read_record
from crocodil.training.work import conditional_flops, distilled_flops, guided_flops, prior_flops

ROOT = Path(__file__).parent.parent
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
README, CARD, PAGE = ROOT / "README.md", ROOT / "src" / "crocodil" / "builtin" / "README.md", DOCS / "results.md"
FIRST, FIRST_ROWS = DOCS / "first-model.md", RESULTS / "first"
START = DOCS / "pretrained-start.md"
LOG, QUICKSTART, HOW = DOCS / "research-log.md", DOCS / "quickstart.md", DOCS / "how-it-works.md"
OWN, DEFAULTS = RESULTS / "second", RESULTS / "second-defaults"  # the rows of the built-in model
BASE = RESULTS / "second-base"
FOLDERS = sorted(file.parent for file in RESULTS.rglob("conditions.json"))
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])


@pytest.fixture(scope="module")
def rows():
    """Rows of the first model."""
    return timed(read_all(FIRST_ROWS))


@pytest.fixture(scope="module")
def found(rows):
    return json.loads(json.dumps(summary(rows), allow_nan=False))


@pytest.fixture(scope="module")
def own_rows():
    """Rows of the built-in model and its base, by the protocol."""
    return timed(read_all(OWN))


@pytest.fixture(scope="module")
def default_rows():
    """Rows of the built-in model with its default settings."""
    return timed(read_all(DEFAULTS))


@pytest.fixture(scope="module")
def pipe(own_rows):
    dtype = getattr(torch, own_rows["model"][0]["dtype"])
    return with_base(Crocodil.from_pretrained(device="cpu", dtype=dtype), BASE)


def prose(file):
    return " ".join(file.read_text().split())


@every_folder
def test_the_summary_is_what_the_rows_say(folder):
    written = json.dumps(summary(timed(read_all(folder))), allow_nan=False)
    assert json.loads(written) == json.loads((folder / "summary.json").read_text())


@pytest.mark.skipif(not can_draw(), reason="needs matplotlib")
@every_folder
def test_the_report_is_what_the_rows_say(folder):
    pictures = {file.stem: f"figures/{file.name}" for file in (folder / "figures").glob("*.svg")}
    rows = timed(read_all(folder))
    sections = report(rows, kept_targets(folder, rows["model"]))
    assert as_markdown(TITLE, sections, pictures) == (folder / "report.md").read_text()


@pytest.mark.parametrize("file", [README, PAGE, CARD], ids=["README", "results page", "model card"])
def test_the_tables_of_a_page_are_what_the_rows_of_the_built_in_model_say(
    file, own_rows, default_rows, monkeypatch
):
    monkeypatch.chdir(ROOT)
    page, rows_in = file.read_text(), {OWN: own_rows, DEFAULTS: default_rows}
    named = {folder.relative_to(ROOT).as_posix(): rows for folder, rows in rows_in.items()}
    assert OWN.relative_to(ROOT).as_posix() in folders_of(page)
    for folder in folders_of(page):
        assert filled(page, named[folder], Path(folder)) == page


def test_the_tables_of_the_page_of_the_first_model_are_what_its_rows_say(rows, monkeypatch):
    monkeypatch.chdir(ROOT)
    page, folder = FIRST.read_text(), FIRST_ROWS.relative_to(ROOT)
    assert folders_of(page) == [folder.as_posix()]
    assert filled(page, rows, folder) == page


def test_a_page_without_marks_or_with_an_unknown_table_is_refused(own_rows, tmp_path):
    (tmp_path / "page.md").write_text("# A page")
    with pytest.raises(ValueError, match="marks no place for tables"):
        write_page(tmp_path / "page.md", own_rows, OWN)
    (tmp_path / "page.md").write_text(f"{NOT_YET_MEASURED} and <!-- report of -: luck -->\n<!-- end of report -->")
    with pytest.raises(ValueError, match="a page asks for 'luck': choose from conditions, base"):
        write_page(tmp_path / "page.md", own_rows, OWN)


def test_a_page_may_show_rows_of_several_folders_and_each_command_writes_its_own(own_rows, default_rows, tmp_path):
    (tmp_path / "page.md").write_text("".join(
        f"<!-- report of {folder}: conditions -->\n<!-- end of report -->\n" for folder in ("a", "b", "-")
    ))  # fmt: skip
    write_page(tmp_path / "page.md", own_rows, Path("b"))
    assert folders_of((tmp_path / "page.md").read_text()) == ["a", "b", "b"]
    assert (tmp_path / "page.md").read_text().count("Judge: qwen2.5-coder-0.5b") == 2
    with pytest.raises(ValueError, match="marks no place for tables of these rows: <!-- report of c: speed-up"):
        write_page(tmp_path / "page.md", default_rows, Path("c"))


def test_the_rows_are_of_the_built_in_model_and_of_its_base(own_rows, default_rows, pipe):
    for row in own_rows["model"]:
        assert parts(pipe) == row["model"]
    for row in default_rows["model"]:
        assert parts(replace(pipe, base=None)) == row["model"]


def test_the_bases_share_of_compute_follows_from_the_records_of_the_runs(own_rows, pipe):
    training = {"run": read_record(OWN / "training"), "base": read_record(BASE)}
    share, with_priors = (base_compute_share(pipe, training, with_priors=priors) for priors in (False, True))
    for row in own_rows["model"]:
        assert row["base_compute_share"] == pytest.approx(share)
        assert row["base_compute_share_with_priors"] == pytest.approx(with_priors)
    assert f"has {with_priors:.2f} of the compute of the model" in prose(PAGE)
    for page in (PAGE, CARD):
        assert f"lacks {1 - with_priors:.1%} of the compute of" in prose(page)
    work = training["base"]["work"]["base"]
    assert f"{work.flops + work.inherited['base']:.3e} in all".replace("e+", "e") in prose(LOG)


def test_rows_name_the_settings_that_their_method_generated_with(default_rows, pipe):
    for row in default_rows["cpu-seconds"]:
        own = own_settings(pipe, Method(row["method"]))
        assert {name: row.get(name, value) for name, value in own.items()} == own  # older rows name fewer
    for row in default_rows["generation"]:
        if row.get("swept_at", 0) is None and row["method"] in list(Method):  # measured with default settings
            defaults = decoding_row(pipe.settings.decoding_for(Method(row["method"])))
            row = decoding_row(Decoding()) | row  # fields that are newer than the row
            assert {name: row[name] for name in defaults} == defaults
    for row in default_rows["memorisation"]:
        for method, chosen in row["chosen"].items():
            assert own_settings(pipe, Method(method)).items() >= chosen.items()


def test_the_limits_of_the_built_in_model_are_stated(pipe):
    drawn = (pipe.conditional or pipe.prior).config.num_registers
    kept = pipe.settings.drawing.num_registers or drawn
    training = read_run_file(OWN / "training")
    objective = training.get("guided_objective") or read_run_file(OWN / "base")["guided_objective"]
    for file in (README, CARD):
        is_stated = f"generates with {kept} registers, a number that it was never trained on" in prose(file)
        assert is_stated == (kept not in {0, *objective["prefix_lengths"]})
        assert ("cannot be rebuilt exactly" in prose(file)) == (
            "demasker" not in training
        )  # only a complete record
    assert pipe.demasker.config.across_text
    assert "In the built-in model register i has its own position across the text" in prose(HOW)


def test_the_model_card_states_the_shapes_the_layers_and_the_size_of_the_built_in_model(pipe):
    folder, card = model_folder(BUILTIN), CARD.read_text()
    networks = {name: getattr(pipe, name) for name in ("demasker", "encoder", "conditional")}
    counts = {name: num_parameters(network) / 1e6 for name, network in networks.items()}
    megabytes = sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6
    stated = f"{sum(counts.values()):.0f} M parameters in {megabytes:.0f} MB"
    assert stated in prose(CARD)
    assert stated in prose(ROOT / "CHANGELOG.md")
    assert re.findall(r"\| ([\d.]+) M \| \d \|", card) == [f"{count:.1f}" for count in counts.values()]
    assert f"tokenizer has {len(pipe.tokenizer):,} of SmolLM2's tokens" in prose(CARD)
    assert f"({', '.join(map(str, read_run_file(OWN / 'training')['causal']['layers']))})" in card
    drawn, steps = pipe.conditional.config, pipe.settings.drawing.prior_steps
    assert drawn.num_layers == pipe.demasker.config.backbone.num_layers
    assert f"the {drawn.num_layers} layers of the demasker, started from their weights" in card
    assert f"the first {drawn.num_registers} registers; draws in {steps} steps" in card


# ---------------------------------------------------------------- the first model


def test_the_page_compares_the_built_in_model_with_the_first_one_as_the_rows_do():
    page = PAGE.read_text()
    measured = [json.loads(line) for line in (RESULTS / "against-first.jsonl").read_text().splitlines()]
    for row in measured:
        cost = "" if row["flop_nfe"] is None else f"{row['flop_nfe']:.1f}"
        assert (
            f"| {row['of']} | {cost} | {row['mauve']:.3f} ± {row['mauve_spread']:.3f} |"
            f" {row['mauve_pooled']:.3f} | {row['gen_ppl']:.1f} | {row['entropy']:.2f} |"
            f" {row['distinct_2']:.3f} | {row['parse_share']:.0%} |"
        ) in page
    _, first, _, former, former_quieter, own, quieter, noisier, *corrected = measured
    assert min(row["mauve"] for row in corrected) > own["mauve"]
    assert own["parse_share"] > former["parse_share"] > first["parse_share"]
    assert min(row["mauve"] for row in (own, quieter, noisier)) > former["mauve"] > first["mauve"]
    assert own["gen_ppl"] > first["gen_ppl"] > noisier["gen_ppl"]
    for new, old in ((noisier, former), (quieter, former_quieter)):  # as fluent and as varied, a higher MAUVE
        assert new["gen_ppl"] < 1.05 * old["gen_ppl"]
        assert new["distinct_2"] > old["distinct_2"]
        assert new["mauve"] - old["mauve"] > max(new["mauve_spread"], old["mauve_spread"])


def test_the_page_states_the_speedups_and_what_they_do_not_say(own_rows):
    speedups = summary(own_rows)["speedup"]
    flops = {length: sorted(speedups[length][method]["flops"] for method in GUIDED) for length in ("256", "512")}
    least, most = ([f"{found[end]:.0f}" for found in flops.values()] for end in (0, -1))
    for page, words in (
        (
            PAGE,
            "the model needs {} to {} times fewer FLOPs than a base at its best to write programs of 256 tokens. "
            "For 512 tokens these factors are {} to {},",
        ),
        (ROOT / "CHANGELOG.md", "are {} to {} by FLOPs at 256 tokens and {} to {} at 512"),
    ):
        assert words.format(least[0], most[0], least[1], most[1]) in prose(page)
    assert f"ConThenDisc needs {most[0]} times fewer FLOPs than the base" in prose(README)
    candidates = select(own_rows["sweep"], method="base", calls=16, pace="canvas", top_p=1.0, crop=16)
    found = {row["temperature"]: f"{row['mauve']:.2f}" for row in candidates if row["rule"] == "random"}
    assert f"would be {found[0.85]} instead of {found[1.0]} (validation programs)" in prose(PAGE)
    at = {row["calls"]: row for row in select(own_rows["generation"], length=256, method="base")}
    assert (at[16]["temperature"], at[256]["temperature"]) == (1.0, 0.85)
    assert f"256 calls on shorter texts cost {at[256]['flop_nfe']:.0f}" in prose(README)
    assert f"256 calls on shorter texts cost {at[256]['flop_nfe']:.0f}" in prose(PAGE)


def test_the_pages_state_what_equal_shares_that_parse_cost(own_rows):
    at = {(row["length"], row["method"], row["calls"]): row for row in own_rows["generation"]}
    few, more = at[256, "base", 64], at[256, "conthendisc", 16]
    ratio = f"{few['flop_nfe'] / more['flop_nfe']:.1f}"
    words = f"the base needs 64 calls for {few['parse_share']:.0%}"
    for page in (README, PAGE):
        assert words in prose(page)
        assert f"ConThenDisc 16 calls for {more['parse_share']:.0%}: {ratio} times cheaper" in prose(page)
    assert f"for equally many samples that parse, {ratio} times fewer" in prose(README)
    assert f"the base needs 64, which cost {ratio} times more" in prose(PAGE)
    few, more = at[512, "base", 128], at[512, "conthendisc", 16]
    assert (
        f"At 512 tokens the base needs 128 calls for {few['parse_share']:.0%}, ConThenDisc 16 calls for "
        f"{more['parse_share']:.0%}: {few['flop_nfe'] / more['flop_nfe']:.1f} times cheaper"
    ) in prose(PAGE)
    varied = {row["distinct_2"] for row in at.values() if row["method"] in GUIDED and row["length"] == 256}
    assert max(varied) < at[256, "base", 256]["distinct_2"]


def test_the_pages_state_what_other_rules_of_matching_give(own_rows):
    rows, (real,) = select(own_rows["generation"], length=512), select(own_rows["reference"], length=512)
    by_mauve = [speedups_by_mauve(rows, real)[method].factor for method in GUIDED]
    assert "By MAUVE alone they are {:.1f} and {:.1f}".format(*by_mauve) in prose(README)
    at = {(row["method"], row["calls"]): row for row in rows}
    base, few = at["base", 512], at["conthendisc", 8]
    assert f"The MAUVE of the base has a spread of {base['mauve_spread']:.3f} there" in prose(PAGE)
    spreads = [row["mauve_spread"] for row in own_rows["generation"] if row != base]
    assert 2 * max(spreads) < base["mauve_spread"]
    apart = abs(few["entropy"] - real["entropy"]) - abs(base["entropy"] - real["entropy"])
    assert 0 < apart < 0.001
    assert f"else it would have {base['flop_nfe'] / few['flop_nfe']:.1f}" in prose(PAGE)
    assert at["base", 256]["mauve"] == pytest.approx(base["mauve"], abs=0.005)
    rules = speedups_by_other_rules(rows, real)
    assert rules["without the spread of the base's MAUVE"]["conwithindisc"].method.calls == 16


def test_the_pages_state_the_quality_of_samples(own_rows, default_rows):
    wanted = kept_targets(OWN, own_rows["model"])
    found = lines(wanted, own_rows)
    reached = sum(line.reached is True for line in found)
    assert f"Of {len(found)} targets that were set before, the model reaches [{reached}]" in prose(README)
    at = {"length": 256, "calls": 16}
    (within,), (then,), (oracle,) = (
        select(own_rows["generation"], method=method, **at) for method in (*GUIDED, "encoded registers")
    )
    parse = [f"{row['parse_share']:.0%}" for row in (within, then, oracle)]
    (real,) = select(own_rows["reference"], length=256)
    assert f"{parse[0].removesuffix('%')} to {parse[1]} parse" in prose(PAGE)
    assert (
        f"With ConThenDisc {parse[1]} of its samples parse in 16 calls, with ConWithinDisc {parse[0]}. Of real "
        f"programs, cut to the same length, {real['parse_share']:.0%} do"
    ) in prose(README)
    assert f"{parse[0].removesuffix('%')} to {parse[1]} of its samples of 256 tokens" in prose(
        ROOT / "CHANGELOG.md"
    )
    assert f"which about {parse[1]} parse" in prose(CARD)
    assert f"and {parse[2]} if their registers come from the encoder" in prose(PAGE)
    assert f"MAUVE is {oracle['mauve']:.2f} and {then['mauve']:.2f}. The rest of the gap" in prose(PAGE)
    (anchor,) = select(own_rows["anchor"], length=256)
    shares = " and ".join(f"{row['mauve'] / anchor['mauve']:.3f}" for row in (then, within))
    assert f"({shares} of real, {wanted.mauve_of_real} wanted)" in prose(PAGE)
    assert f"{within['flop_nfe'] / then['flop_nfe'] - 1:.0%} more at 256 tokens" in prose(PAGE)
    below = [
        -fmean(part.mauve.mean for part in differences(select(own_rows["generation"], length=length)))
        for length in (256, 512)
    ]
    assert "is lower, by {:.2f} at 256 tokens and by {:.2f} at 512".format(*below) in prose(PAGE)
    bounds = [f"{row['bits_per_byte']:.3f}" for row in own_rows["likelihood"]]
    assert f"{bounds[0]} bits per byte on validation programs, {bounds[1]} on the fresh" in prose(PAGE)
    (copied,) = select(own_rows["autoencoder"], block=256, **at)
    assert f"a character error rate of {copied['cer']:.3f}" in prose(PAGE)
    assert f"that it has not seen, {copied['cer']:.1%} come out wrong" in prose(README)
    old, new = (select(rows["reference"], length=256)[0]["mauve"] for rows in (default_rows, own_rows))
    assert f"validation programs have {old:.2f} here and {new:.2f} there" in prose(PAGE)


def test_the_page_compares_the_methods_at_equal_entropy(own_rows):
    (real,) = select(own_rows["reference"], length=256)
    table = frontier_table(own_rows["sweep"], real)
    column = table.heads.index("entropy 3.72")
    gen_ppl = {tuple(row[:2]): float(row[column]) for row in table.body if row[column] not in ("", "-")}
    few, many = (gen_ppl["base", calls] / gen_ppl["ConThenDisc", calls] for calls in ("16", "64"))
    assert (
        f"entropy of 3.72, the Gen-PPL of the base is {many:.1f} times that of ConThenDisc in 64 calls, "
        f"and {few:.1f} times in 16"
    ) in prose(PAGE)


def test_seconds_on_a_laptop_are_stated(default_rows):
    at = {"length": 256, "calls": 16}
    seconds = [select(default_rows["cpu-seconds"], method=method, **at)[0]["cpu_seconds"] for method in GUIDED]
    assert {f"{value:.0f}" for value in seconds} == {"3"}
    assert "On two threads of an x86-64 server, a program of 256 tokens takes 3 seconds" in prose(README)
    assert {(row["machine"], row["threads"]) for row in default_rows["cpu-seconds"]} == {("x86_64", 2)}
    row = f"| {at['calls']} | " + " | ".join(f"{value:.1f}" for value in seconds)
    assert f"| built-in model, on two threads of an x86-64 server {row} |" in (DOCS / "speed.md").read_text()


def test_the_page_states_what_lies_between_two_programs(default_rows):
    at = {row["mix_weight"]: row for row in default_rows["interpolation"]}
    assert f"of the samples from there {at[0.5]['parse_share']:.1%} parse" in prose(PAGE)
    assert f"of the texts from there, {at[0.5]['parse_share']:.1%} parse" in prose(README)
    assert f"about as good as copies (MAUVE {at[0.25]['mauve']:.2f})" in prose(PAGE)
    assert at[0.25]["mauve"] > at[0.0]["mauve"] - at[0.0]["mauve_spread"]


def test_the_page_of_the_first_model_states_its_shape_and_the_compute_of_its_base(rows):
    (row, *_) = rows["model"]
    counts = [row[f"{name}_parameters"] for name in ("demasker", "encoder", "prior", "conditional")]
    assert f"{sum(counts) / 1e6:.0f} M parameters" in prose(FIRST)
    share, with_priors = row["base_compute_share"], row["base_compute_share_with_priors"]
    assert f"{share:.2f} times the compute of demasker and encoder, {with_priors:.2f} times" in prose(FIRST)
    assert f"**{share:.2f}** times the compute of demasker and encoder, and {with_priors:.2f} times" in prose(LOG)


def test_copies_are_stated_with_their_error_and_the_share_of_exact_ones(rows):
    one_block = {
        (row["length"], row["calls"]): row for row in rows["autoencoder"] if row["block"] == row["length"]
    }
    exact, cer = ({at: row[name] for at, row in one_block.items()} for name in ("exact_share", "cer"))
    assert f"**{cer[256, 16]:.3f}, {cer[256, 64]:.3f}** with 64 registers" in prose(FIRST)
    assert f"{exact[256, 16]:.0%} and {exact[256, 64]:.0%} of the copies are exact" in prose(FIRST)
    assert f"512 tokens: {cer[512, 16]:.3f}, {cer[512, 64]:.3f}; {exact[512, 16]:.0%} and" in prose(FIRST)
    assert f"{exact[512, 64]:.0%} exact" in prose(FIRST)


def test_the_way_between_two_programs_is_stated(rows):
    at = {(row["length"], row["mix_weight"]): row for row in rows["interpolation"]}
    half, longer, quarter = at[256, 0.5], at[512, 0.5], at[256, 0.25]
    assert (
        f"MAUVE {half['mauve']:.2f}, Gen-PPL {half['gen_ppl']:.0f} (512 tokens: {longer['mauve']:.2f}, "
        f"{longer['gen_ppl']:.0f}). A quarter of the way: {quarter['mauve']:.2f}, {quarter['gen_ppl']:.1f}"
    ) in prose(FIRST)


def test_copied_runs_and_seconds_on_a_cpu_are_stated(found, rows):
    runs = found["memorisation"]["256"]
    own, real = runs["conwithindisc"], runs["real"]
    assert (
        f"mean {own['mean']:.1f}, longest {own['max']}, {own['long_share']:.1%} over 50; "
        f"real test programs: {real['mean']:.1f}, {real['max']}, {real['long_share']:.1%}"
    ) in prose(FIRST)
    seconds = found["cpu_seconds_per_program"]["256"]
    stated = f"ConWithinDisc **{seconds['conwithindisc']:.1f}**, ConThenDisc {seconds['conthendisc']:.1f}"
    assert stated in prose(FIRST)
    noise = {(row["trained"], row["noise_std"]): row["cross_entropy"] for row in rows["noise"]
             if row["length"] == 256}  # fmt: skip
    with_noise, without = (value for (_, std), value in noise.items() if std == 1.0)
    assert f"noise of 1.0: {with_noise:.2f}; {without:.2f} after 400 more steps" in prose(FIRST)


def test_how_a_prefix_is_continued_is_stated():
    texts = [json.loads(line)["text"] for line in (FIRST_ROWS / "prompts.jsonl").read_text().splitlines()]
    assert all(text.startswith("def read(path):\n") for text in texts)
    indented = sum(text.removeprefix("def read(path):\n").lstrip("\n").startswith(" ") for text in texts)
    assert f"{indented} of {len(texts)} samples continue the prefix" in prose(FIRST)
    assert f"{sum(map(parses_as_python, texts))} of these {len(texts)} parse" in prose(FIRST)


def test_the_caveats_state_what_rows_and_log_say(found, rows):
    page, log = prose(FIRST), prose(LOG)
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


# ---------------------------------------------------------------- memory and hours, and a pretrained start


def with_shapes_of_the_built_in_model(run):
    networks = {name: model_config(model_folder(BUILTIN) / name) for name in ("demasker", "encoder")}
    drawn = model_config(model_folder(BUILTIN) / "conditional").num_registers
    priors = {name: replace(getattr(run, name), num_registers=drawn) for name in ("prior", "conditional")}
    lengths = read_settings(settings_file(BUILTIN)).lengths
    return replace(run, lengths=lengths, **networks, **priors)


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
    tuned = with_shapes_of_the_built_in_model(of("small", *WHOLE_BATCHES, "guided_loop.batch_size=32"))
    assert f"{gigabytes(tuned)['guided']} at batch 32" in readme
    assert f"batch 32 | guided | {gigabytes(tuned)['guided']} |" in quickstart
    tokens = small.guided_loop.num_steps * small.guided_loop.batch_size * sum(small.lengths) / len(small.lengths)
    minutes = [tokens / 1453e3 / 60, tokens / 780e3 / 60, small.conditional_loop.num_steps * 0.082 / 60]
    assert f"about {sum(minutes):.0f} minutes measured on one H200" in readme
    for stage, taken in zip(("base", "guided", "conditional"), minutes, strict=True):
        as_measured = "" if whole[stage] == memory[stage] else f"; {whole[stage]} without micro-batches"
        line = rf"{stage} \| {re.escape(memory[stage] + as_measured)} \| [^|]+ \| {taken:.0f} minutes"
        assert re.search(line, quickstart)
    own = of("builtin")
    minutes = {
        part.stage: 60 * hours(part.flops, rate_of("builtin", part.stage))
        for part in estimates(own)
        if part.stage not in ("prior", "prompted", "head")
    }
    memory = gigabytes(own)
    total = f"about {sum(minutes.values()):.0f} minutes"
    assert f"| `builtin` | {memory['guided']}, for a GPU of 16 GB | {total}" in readme
    for stage, taken in minutes.items():
        assert re.search(rf"{stage} \| {memory[stage]} \| [^|]+ \| {taken:.0f} minutes", quickstart)
    for name in ("laptop", "medium"):
        optional = ("prior", "distilled", "prompted", "head")
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


def test_a_pretrained_start_is_worth_what_its_rows_say():
    programs, *rows = (json.loads(line) for line in (RESULTS / "pretrained-start.jsonl").read_text().splitlines())
    sizes = torch.tensor(programs["bytes"]).double()
    bits = [torch.tensor(row["nats"]).double() / math.log(2) for row in rows]

    def rate(bits):
        """Return bits per byte of all programs together, and the standard error of this ratio over programs."""
        ratio = bits.sum() / sizes.sum()
        error = (bits - ratio * sizes).std() * math.sqrt(len(sizes)) / sizes.sum()
        return f"{ratio:.3f}", f"{error:.3f}"

    page, section = prose(START), START.read_text()
    cells = [line.split("|")[1:-1] for line in section.splitlines() if "M | " in line]
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


def test_the_record_of_the_built_in_model_has_the_operations_of_all_its_runs(pipe):
    shapes = shapes_of(pipe)
    first, second, last = (
        read_run_file(OWN / folder) for folder in ("first-training", "training", "prior-training")
    )
    planned = {folder["guided_start"]: planned_flops(folder, shapes) for folder in (first, second)}
    base, guided = planned[None]["base"], planned[None]["guided"] + planned["start"]["guided"]
    last_conditional = planned_flops(last, shapes)["conditional"]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in CARD.read_text().splitlines()]
    samples = {name: int(steps) * int(batch) for name, steps, batch in filter(is_stage, rows)}
    script = samples["denoiser without a condition (a script)"] * prior_flops(
        shapes.conditional, self_condition_rate=0.5
    )
    per_sample = [
        conditional_flops(
            shapes.conditional, shapes.encoder, length=length, bare_rate=0.6, self_condition_rate=0.5
        )
        for length in last["lengths"]
    ]
    conditional = script + samples["conditional"] * fmean(per_sample) + last_conditional
    objective = read_as(DistilObjective, last["distil_objective"], OWN)
    distilled = samples["distilled, last run"] * fmean(
        distilled_flops(
            {"conditional": shapes.conditional},
            shapes.encoder,
            length=length,
            objective=objective,
            bare_rate=last["prior_objective"]["bare_rate"],
        )
        for length in last["lengths"]
    )
    spent = flops_of_run(read_record(OWN / "training"), shapes)
    assert (spent["base"], spent["guided"]) == pytest.approx((base, guided))
    priors = {"conditional": conditional, "distilled": distilled}
    for name, counted in priors.items():  # when they were recorded, the maps around the blocks were not counted
        assert 0.985 < spent[name] / counted < 0.995
    total = sum(spent[name] for name in ("base", "guided", *priors))
    assert f"{total:.2e}".replace("e+18", "e18") in prose(DOCS / "decisions.md")


def is_stage(cells):
    return len(cells) == 3 and all(cell.isdigit() for cell in cells[1:])
