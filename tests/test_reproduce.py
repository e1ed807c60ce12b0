"""The paper's tables and figures: rows that are computed once, a fair sweep, and one report of everything."""

import json
import math
import shutil
from collections import Counter
from copy import copy
from dataclasses import asdict, replace
from hashlib import sha256

import pytest
import torch
from tiny_judges import save_encoder, save_language_model
from typer.testing import CliRunner
from wheels import program

from crocodil import cli
from crocodil.checkpoints.format import save_model
from crocodil.corpus.build import build
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.sources import Files
from crocodil.judges import Evaluator, Judge, TextScore, gen_ppl
from crocodil.metrics import Run, TextFeatures
from crocodil.models.llada import LLaDA
from crocodil.pipeline import Crocodil, Method, Settings
from crocodil.presets.runs import tiny
from crocodil.processes.plan import DecodePlan
from crocodil.reproduce import figures, published
from crocodil.reproduce.choice import BY_AIMS, Aims, best
from crocodil.reproduce.context import Context, described, lineage, with_base, with_steps
from crocodil.reproduce.document import (
    Listing,
    Picture,
    Section,
    Table,
    Text,
    as_html,
    as_markdown,
    number,
    with_spread,
)
from crocodil.reproduce.evaluation import evaluate_model, evaluate_texts, read_texts
from crocodil.reproduce.experiments import (
    autoencoder,
    comparison,
    compute_all,
    copies,
    generation,
    read_all,
    register_priors,
    two_sentences,
)
from crocodil.reproduce.experiments.base_bound import bound_row, whole_programs
from crocodil.reproduce.experiments.comparison import (
    own_best_calls,
    speedup_tables,
    speedups,
    speedups_by_mauve,
)
from crocodil.reproduce.experiments.copies import describe_runs
from crocodil.reproduce.experiments.demasker_curves import register_counts
from crocodil.reproduce.experiments.frontiers import (
    at_entropy,
    frontier,
    frontier_picture,
    frontier_table,
    lower_hull,
)
from crocodil.reproduce.experiments.generation import other_judges_table
from crocodil.reproduce.experiments.generation import show as show_generation
from crocodil.reproduce.experiments.timing import compute_batch_seconds, compute_cpu_seconds, compute_seconds
from crocodil.reproduce.experiments.training_compute import base_compute_share, prior_stages, shapes_of
from crocodil.reproduce.figures import Curve, Panel, Real
from crocodil.reproduce.fixed_protocol import FixedProtocol, check_same_protocol, read_protocol
from crocodil.reproduce.headline_numbers import summary
from crocodil.reproduce.held_out import HeldOut, corpus_fingerprint, tokenized_again
from crocodil.reproduce.pages import BLOCKS
from crocodil.reproduce.protocol import (
    DEFAULTS,
    EXAMPLE_CALLS,
    FULL,
    QUICK,
    TINY,
    blocks_and_calls,
    protocol_named,
)
from crocodil.reproduce.report import report, timed, write_report
from crocodil.reproduce.store import Job, Store, note_of, read_rows, select, write_rows
from crocodil.reproduce.sweep import candidate_of, finalists, own_settings
from crocodil.runtime.atomic import locked
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.seeding import generator_for
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.spent import StageWork, planned_flops, read_record
from crocodil.training.stage_setup import base_stage, conditional_stage, guided_stage, prior_stage
from crocodil.training.workspace import Workspace

NETWORKS = {
    "demasker": "guided/model/demasker",
    "encoder": "guided/model/encoder",
    "prior": "prior/model/denoiser",
    "conditional": "conditional/model/denoiser",
}
BASE = "base/model/demasker"


class ByteChain:
    """A small causal language model: a Markov chain over bytes, estimated from texts."""

    name = "byte chain"
    families = ("chain-1x256-256",)

    def __init__(self, texts):
        self.counts = torch.ones(256, 256)
        for text in texts:
            ids = torch.tensor(list(text.encode()))
            self.counts.index_put_((ids[:-1], ids[1:]), torch.tensor(1.0), accumulate=True)

    def scores(self, texts, *, batch_size=8):
        log_probs = self.counts.log() - self.counts.sum(dim=1, keepdim=True).log()
        scores = []
        for text in texts:
            ids = torch.tensor(list(text.encode()), dtype=torch.int64)
            nats = -log_probs[ids[:-1], ids[1:]].sum().item()
            scores.append(TextScore(nats, max(len(ids) - 1, 0), len(ids)))
        return scores

    def features(self, texts, *, batch_size=8):
        shares = torch.zeros(len(texts), 256)
        for row, text in zip(shares, texts, strict=True):
            for byte, count in Counter(text.encode()).items():
                row[byte] = count
        return TextFeatures(shares + 1e-3, shares + 1e-2)


@pytest.fixture(scope="module")
def judge():
    return ByteChain(["def f(x):\n    return x\n", "for step in range(4):\n    total += step\n"])


@pytest.fixture(scope="module")
def pipe(trained, corpus):
    """A model without a base, which tests give separately."""
    networks = {name: trained / path for name, path in NETWORKS.items()}
    tokenizer = corpus.directory / "tokenizer.json"
    settings = Settings(length=64, lengths=(48, 64))
    return Crocodil.assemble(networks, tokenizer=tokenizer, settings=settings, device="cpu")


@pytest.fixture(scope="module")
def evaluator(judge, pipe):
    return Evaluator(judge=judge, tokenizer=pipe.tokenizer, mauve_seeds=(0, 1), mauve_buckets=2)


@pytest.fixture(scope="module")
def folder(pipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "model"
    pipe.save_pretrained(out)
    return out


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory):
    return save_language_model(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def embedder_folder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def out(folder, corpus, trained, judge_folder, embedder_folder, tmp_path_factory):
    """The directory that `crocodil reproduce all --preset tiny` writes."""
    results = tmp_path_factory.mktemp("results")
    made = run(
        "reproduce", "all", "--preset", "tiny", "--model", folder, "--data", corpus.directory,
        "--judge", judge_folder, "--embedder", embedder_folder,
        "--ablation-model", f"without register noise={folder}", "--ablation-model", f"registers 8={folder}",
        "--compare", f"copy={folder}", "--run", trained, "--base", trained / BASE, "--length", 64,
        "--out", results,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert made.stdout.strip() == str(results / "report.html")
    return results


@pytest.fixture(scope="module")
def results(out):
    return read_all(out)


# ---------------------------------------------------------------- the paper's own


def test_the_autoencoder_tables_are_the_papers_and_every_row_is_a_valid_plan():
    assert [len(table) for table in published.AUTOENCODER.values()] == [19, 25]
    for length, table in published.AUTOENCODER.items():
        examples = {(length, calls) for calls in EXAMPLE_CALLS}
        assert set(blocks_and_calls(length)) == set(table) | examples
    for length in (64, 128, 256, 512, 1024):
        for block, calls in blocks_and_calls(length):
            DecodePlan(length=length, block_size=block, num_calls=calls)


def test_only_odd_numbers_are_marked():
    odd = {
        (length, *place)
        for length, table in published.AUTOENCODER.items()
        for place, row in table.items()
        if row.is_odd
    }
    assert len(odd) == 9
    assert {length for length, _, _ in odd} == {512}


def test_published_speedups_are_ratios_of_published_costs():
    assert round(512 / published.GENERATION[512, "conwithindisc", 32].nfe) == published.SPEEDUP[512]
    assert round(1024 / published.GENERATION[1024, "conwithindisc", 64].nfe) == published.SPEEDUP[1024]


def test_the_full_protocol_is_the_papers():
    assert (FULL.num_programs, FULL.num_pairs, FULL.num_drawn) == (1000, 1000, 5000)
    assert FULL.noise_mask_prob == 0.9
    assert FULL.calls(512, guided=False) == [8, 16, 32, 64, 128, 256, 512]
    assert FULL.calls(512, guided=True) == [8, 16, 32, 64]
    assert QUICK.num_samples == 256
    assert register_counts(128) == [8, 64, 128]
    with pytest.raises(ValueError, match="no protocol 'huge': choose one of full, quick, defaults, tiny"):
        protocol_named("huge")


def test_priors_use_the_models_steps_unless_the_protocol_sets_them(pipe):
    own = Drawing(prior_steps=7, refresh_steps=3, eta=0.5, pag_scale=2.0)
    for protocol, expected in (
        (FULL, own),
        (FULL.with_paper_steps(), Drawing(prior_steps=128, refresh_steps=32, eta=0.0, pag_scale=0.0)),
        (TINY, replace(own, prior_steps=4, refresh_steps=2)),
    ):
        model = replace(pipe, settings=replace(pipe.settings, drawing=own))
        assert with_steps(model, protocol).settings.drawing == expected


# ---------------------------------------------------------------- rows


def test_a_row_is_computed_once_even_if_the_process_is_stopped(tmp_path):
    computed = []

    def job(place, *, fails=False):
        def compute():
            if fails:
                raise KeyboardInterrupt
            computed.append(place)
            return {"value": place / 2, "unknown": math.nan}

        return Job({"place": place}, compute)

    store = Store(tmp_path, {"seed": 0})
    with pytest.raises(KeyboardInterrupt):
        store.compute("rows", [job(0), job(1), job(2, fails=True)])
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"place": 2, "val')  # killed while it wrote
    found = store.compute("rows", [job(0), job(1), job(2)])
    assert computed == [0, 1, 2]
    assert [row["value"] for row in found] == [0.0, 0.5, 1.0]
    assert found[0]["unknown"] is None
    assert found == read_rows(tmp_path / "rows.jsonl")
    assert all(row["seed"] == 0 and row["commit"] for row in found)
    Store(tmp_path, {"seed": 1}).compute("rows", [job(1)])  # other conditions
    assert computed == [0, 1, 2, 1]


def test_a_row_stays_valid_when_a_part_that_it_does_not_use_changes(tmp_path):
    def store(**model):
        return Store(tmp_path, {"model": {"base": None, "demasker": "d", "prior": "p"} | model})

    jobs = [Job({"who": who}, dict, uses=uses) for who, uses in {"copy": ("demasker",), "draw": None}.items()]
    assert [row["model"] for row in store().compute("rows", jobs)] == [
        {"demasker": "d"},
        {"base": None, "demasker": "d", "prior": "p"},
    ]
    assert [row["who"] for row in store(prior="q").rows("rows")] == ["copy"]
    assert store(demasker="e").rows("rows") == []
    assert store(base="b").rows("rows") == store(prior="q").rows("rows")  # a base where there was none


def test_an_old_name_of_a_rule_is_the_candidate_of_its_new_name():
    old, new = (replace(TINY, swept={"rule": (rule,)}) for rule in ("most confident", "confidence"))
    assert old.candidates(guided=False) == new.candidates(guided=False)


def test_a_row_is_replaced_when_another_candidate_is_chosen(tmp_path):
    def found(rule):
        job = Job({"calls": 8}, lambda: {"rule": rule}, chosen={"rule": rule})
        return Store(tmp_path, {}).compute("rows", [Job({"calls": 4}, dict), job])

    found("random")
    rows = found("confidence")
    assert [row.get("rule") for row in rows] == [None, "confidence"]
    assert read_rows(tmp_path / "rows.jsonl") == rows


def test_a_row_is_replaced_when_a_default_of_the_model_changes_that_older_rows_do_not_name(tmp_path):
    computed = []

    def found(corrector):
        def compute():
            computed.append(corrector)
            return {"rule": "revise", **({"corrector": corrector} if corrector else {})}

        settings = {"rule": "revise", "corrector": corrector}
        job = Job({"calls": 8}, compute, chosen=settings, defaults={"rule": "random", "corrector": 0.0})
        return Store(tmp_path, {}).compute("rows", [job])

    for corrector in (0.0, 0.0, 0.25, 0.25):
        (row,) = found(corrector)
        assert row.get("corrector", 0.0) == corrector
    assert computed == [0.0, 0.25]  # the first row does not name it
    assert len(read_rows(tmp_path / "rows.jsonl")) == 1


def test_rows_of_a_model_are_removed_when_another_is_measured_under_its_name(tmp_path):
    def found(name, parts):
        key = {"method": name, "calls": 8, "variant_model": parts}
        return Store(tmp_path, {}).compute("rows", [Job(key, dict, uses=())])

    found("theirs", {"demasker": "a"})
    found("ours", {"demasker": "a"})
    found("theirs", {"demasker": "b"})
    left = [(row["method"], row["variant_model"]["demasker"]) for row in read_rows(tmp_path / "rows.jsonl")]
    assert left == [("ours", "a"), ("theirs", "b")]


def test_a_row_may_hold_any_line_separator(tmp_path):
    rows = [{"text": "one\u2028two\x85three\x1cfour"}, {"text": "five"}]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows
    assert read_texts(tmp_path / "rows.jsonl") == [row["text"] for row in rows]
    write_rows(tmp_path / "rows.jsonl", [])
    assert read_rows(tmp_path / "rows.jsonl") == []


@pytest.mark.parametrize("first", ['{"a": 1', "[1]", "null", "[" * 100_000])
def test_a_damaged_file_is_refused(tmp_path, first):
    (tmp_path / "rows.jsonl").write_text(f'{first}\n{{"a": 2}}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl is damaged: line 1"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("conditions.json", "[7]", "conditions.json: 0 should be"),
        ("conditions.json", "[" * 100_000, "conditions.json is not JSON"),
        ("model.jsonl", "", "has no rows of model"),
        ("reference.jsonl", '{"length": 64}', "are damaged, or of another version"),
    ],
)
def test_damaged_rows_are_refused_in_one_line(out, tmp_path, file, content, message):
    for one in (*out.glob("*.jsonl"), out / "conditions.json"):
        shutil.copy(one, tmp_path)
    if content.startswith("{"):  # a row that lacks what it should hold
        row = json.loads((tmp_path / file).read_text().splitlines()[0])
        content = json.dumps({name: row[name] for name in row if name not in ("gen_ppl", "mauve", "entropy")})
    (tmp_path / file).write_text(f"{content}\n")
    failed = run("report", "--out", tmp_path)
    assert isinstance(failed.exception, ValueError), failed.output
    assert message in str(failed.exception)


@pytest.mark.parametrize("row", ["{}", "[1]", '{"text": 7}', '{"text": "\\ud800"}', "[" * 100_000])
def test_a_row_without_a_text_is_refused_in_one_line(tmp_path, row):
    (tmp_path / "texts.jsonl").write_text(f'{{"text": "x"}}\n{row}\n')
    with pytest.raises(ValueError, match=r"line 2 of .* is not a row with a text"):
        read_texts(tmp_path / "texts.jsonl")


def test_a_second_process_does_not_write_the_same_results(out, tmp_path):
    for one in (*out.glob("*.jsonl"), out / "conditions.json"):
        shutil.copy(one, tmp_path)
    with locked(tmp_path):
        assert "in use by another process" in str(run("reproduce", "report", "--out", tmp_path).exception)


# ---------------------------------------------------------------- real programs


@pytest.fixture(scope="module")
def fresh_corpus(tmp_path_factory):
    """A corpus of test programs only, with another tokenizer than the model's."""
    root = tmp_path_factory.mktemp("fresh")
    for place in range(8):
        (root / f"z{place}.py").write_text(program(f"z{place}", 3))
    Tokenizer.train(["def f(x):\n    return x\n"], vocab_size=262).save(root / "tokenizer.json")
    recipe = Recipe(
        source=Files(root), permissive_only=False, near_duplicate=1.0, tokenizer=root / "tokenizer.json",
        hold_out_families=False, valid_share=0.0, test_share=1.0,
    )  # fmt: skip
    return build(recipe, root / "corpus", num_processes=1)


def test_only_test_programs_come_from_the_test_corpus(pipe, corpus, fresh_corpus, evaluator, tmp_path):
    context, alone = (
        Context.for_model(pipe, corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path, **fresh)
        for fresh in ({"test_corpus": fresh_corpus}, {})
    )
    assert context.texts("test", 4) == HeldOut(fresh_corpus, pipe.tokenizer, 64).texts("test", 4)
    assert context.texts("test", 4) != alone.texts("test", 4)
    assert context.texts("valid", 4) == alone.texts("valid", 4)  # settings are still chosen on the own corpus
    assert context.store.conditions["corpus"] == alone.store.conditions["corpus"]


def test_programs_of_a_corpus_with_other_tokens_are_cut_by_the_models_tokenizer(fresh_corpus, pipe):
    own = Tokenizer.load(fresh_corpus.directory / "tokenizer.json")
    texts = HeldOut(fresh_corpus, pipe.tokenizer, 48).texts("test", 30)
    assert max(len(pipe.tokenizer.encode(text)) for text in texts) == 47  # BOS has a position too
    whole = [own.decode(ids.tolist()) for ids in fresh_corpus.programs("test", length=10_000)]
    assert all(any(text in document for document in whole) for text in texts)
    programs = [own.decode(ids.tolist()) for ids in fresh_corpus.programs("test", length=48)]
    assert sorted(tokenized_again(fresh_corpus, "test", own, 48)) == sorted(programs)


# ---------------------------------------------------------------- a fair sweep


def test_the_sweep_chooses_the_lowest_gen_ppl_within_the_spread_of_the_highest_mauve():
    swept = [
        {"mauve": 0.80, "mauve_spread": 0.05, "gen_ppl": 30.0},
        {"mauve": 0.78, "mauve_spread": 0.20, "gen_ppl": 20.0},
        {"mauve": 0.30, "mauve_spread": 0.60, "gen_ppl": 2.0},  # collapsed: its own spread is no merit
        {"mauve": 0.79, "mauve_spread": 0.05, "gen_ppl": None},
    ]
    assert best(swept) is swept[1]


def test_differences_of_mauve_below_the_tie_are_decided_by_gen_ppl():
    sure = {"mauve": 0.90, "mauve_spread": 0.01, "gen_ppl": 30.0}
    near, far = ({"mauve": mauve, "mauve_spread": 0.01, "gen_ppl": 20.0} for mauve in (0.86, 0.84))
    assert best([sure, near]) is near
    assert best([sure, far]) is sure


AIMS = Aims(
    parse_share=0.4, distinct_2_of_real=0.8, entropy_distance=0.25, mauve_of_real=0.75, gen_ppl_of_real=1.3
)
REAL_ROW = {
    "parse_share": 0.7, "distinct_2": 0.3, "entropy": 4.0, "mauve": 0.8, "mauve_pooled": 0.4, "gen_ppl": 8.0,
}  # fmt: skip


def test_an_aim_is_reached_at_its_limit_and_not_beyond():
    at_limits = {
        "parse_share": 0.4, "distinct_2": 0.8 * 0.3, "entropy": 3.75, "mauve": 0.75 * 0.8,
        "mauve_pooled": 0.75 * 0.4, "gen_ppl": 1.3 * 8.0,
    }  # fmt: skip
    assert AIMS.reached(at_limits, REAL_ROW) == list(at_limits)
    for name, value in at_limits.items():
        worse = value + 0.01 if name == "gen_ppl" else value - 0.01
        assert AIMS.reached({**at_limits, name: worse}, REAL_ROW) == [one for one in at_limits if one != name]
    assert "entropy" not in AIMS.reached({**at_limits, "entropy": 4.26}, REAL_ROW)
    assert "gen_ppl" not in AIMS.reached({**at_limits, "gen_ppl": None}, REAL_ROW)


def test_with_aims_the_sweep_chooses_the_most_aims_then_the_highest_mauve():
    repeating = {"mauve": 0.60, "mauve_spread": 0.05, "gen_ppl": 5.0, "aims_reached": ["gen_ppl"]}
    varied = {"mauve": 0.58, "mauve_spread": 0.05, "gen_ppl": 12.0, "aims_reached": ["entropy", "distinct_2"]}
    better = {**varied, "mauve": 0.59}
    assert best([repeating, varied, better]) is better
    swept = [{**row, "swept": ["gen_ppl"]} for row in (repeating, varied)]
    assert finalists(swept, 1) == [{"gen_ppl": 12.0}]
    assert best([{**row, "aims_reached": []} for row in (repeating, varied, better)])["gen_ppl"] == 5.0


def test_a_sweep_with_aims_judges_real_validation_programs_that_are_not_in_the_reference(
    pipe, corpus, evaluator, tmp_path
):
    protocol = replace(TINY, aims=AIMS, max_base_calls=1)
    context = Context.for_model(pipe, corpus=corpus, evaluator=evaluator, protocol=protocol, results=tmp_path)
    rows = generation.compute(context)
    swept = read_rows(tmp_path / "sweep.jsonl")
    assert all(row["aims_reached"] == AIMS.reached(row, context.real_on_valid) for row in swept)
    assert {row["criterion"] for row in rows} == {BY_AIMS}
    num_texts = TINY.num_samples + TINY.num_swept
    texts = context.texts("valid", num_texts)[TINY.num_samples :]
    assert context.real_on_valid["entropy"] == evaluator.statistics(texts)["entropy"]
    few = replace(context, protocol=replace(protocol, num_samples=10**6))
    with pytest.raises(ValueError, match=r"aims need 1,000,000 \+ 4 validation programs"):
        _ = few.real_on_valid


def test_every_method_gets_the_same_sweep_on_valid_and_one_run_on_test(out, results):
    swept, measured = read_rows(out / "sweep.jsonl"), results["generation"]
    for row in measured:
        candidates = TINY.candidates(guided=row["method"] != "base")
        method = "conthendisc" if row["method"] == "encoded registers" else row["method"]  # shares its candidate
        own = select(swept, method=method, calls=TINY.swept_for(row["calls"], 64))
        assert all(candidate_of(one) in candidates for one in own)
        assert len(own) == (TINY.num_finalists if own[0]["calls"] == TINY.final_calls else len(candidates))
        assert {one["split"] for one in own} == {"valid"}
        assert row["split"] == "test"
        assert row["swept_at"] == own[0]["calls"]
        assert candidate_of(row) == candidate_of(best(own))
        assert len(select(measured, method=row["method"], calls=row["calls"])) == 1
    assert {row["method"] for row in measured} >= {"base", "conthendisc", "conwithindisc"}


def test_guided_methods_are_measured_with_default_settings_without_a_sweep_and_without_a_base(
    pipe, corpus, evaluator, tmp_path
):
    assert DEFAULTS.calls(256, guided=False) == []
    assert DEFAULTS.calls(256, guided=True) == DEFAULTS.calls(512, guided=True) == [16, 32]
    protocol = replace(TINY, swept={}, base_sweep=(), guided_sweep=(), max_base_calls=1)

    def found(temperature):
        settings = replace(pipe.settings, decoding=Decoding(temperature=temperature, rule="remask"))
        context = Context.for_model(
            replace(pipe, settings=settings),
            corpus=corpus,
            evaluator=evaluator,
            protocol=protocol,
            results=tmp_path,
        )
        compute_all([context], ["generation", "sweep"])
        return timed(read_all(tmp_path))

    found(0.5)
    results = found(0.0)
    assert "sweep" not in results
    methods = ["conthendisc", "conwithindisc", "encoded registers"]
    assert [row["method"] for row in results["generation"]] == methods  # other settings replaced the first rows
    for row in results["generation"]:
        assert (row["temperature"], row["rule"], row["split"]) == (0.0, "remask", "test")
        assert (row["swept"], row["swept_at"], row["criterion"]) == ([], None, None)
    shown = as_markdown("Title", report(results), {})
    assert "no base was measured, so there are no speed-ups" in shown
    assert "**Settings.** Every method has the model's default settings." in shown
    assert "Fair tuning" not in shown
    assert summary(results)["speedup"]["64"] == {}
    assert summary(results)["own_best_calls"]["64"] is None
    assert set(summary(results)["parse_share"]["64"]) == {*methods, "real"}
    page = {name: as_markdown("", [Section(name, show(results, tmp_path))], {}) for name, show in BLOCKS.items()}
    assert "Speed-ups are not measured yet: there are no rows of a base for this model." in page["speed-up"]
    assert BLOCKS["base"](results, tmp_path) == []
    assert "default settings; there was no sweep. No base was measured." in page["conditions"]
    assert "| **64 tokens**: ConWithinDisc | 4 |" in page["quality"]
    assert "samples that parse, 64 tokens, 4 calls" in page["measurements"]


def test_a_page_has_copies_at_the_nearest_measured_calls_and_a_line_for_each_length(tmp_path):
    parts = ("demasker", "encoder", "prior", "conditional")
    results = {
        "model": [{f"{part}_parameters": 1_000_000 for part in parts} | {"registers": 64}],
        "reference": [],
        "autoencoder": [
            {"length": 512, "block": block, "calls": calls, "cer": calls / 1000, "exact_share": 0.5}
            for block, calls in ((64, 32), (512, 4), (512, 16))
        ],
        "memorisation": [
            {"length": length, "runs": {"conthendisc": run, "real": run}}
            for length, run in ((256, {"mean": 1.5, "max": 20}), (512, {"mean": 2.5, "max": 40}))
        ],
    }
    (table,) = BLOCKS["measurements"](results, tmp_path)
    copies, *shared = table.body[1:]
    assert copies[0].startswith("copies of programs through 64 registers, 512 tokens, 16 calls: ")
    assert copies[1] == "0.016, 50%"
    assert [(line[0][:34], *line[1:]) for line in shared] == [
        ("256 tokens: longest token sequence", "ConThenDisc 1.5, 20", "real programs 1.5, 20"),
        ("512 tokens: longest token sequence", "ConThenDisc 2.5, 40", "real programs 2.5, 40"),
    ]


def test_a_page_compares_by_the_clock_in_batches_of_each_size(tmp_path):
    base, ours = point("base", 64, 64, 64, 0.6), point("conthendisc", 8, 8, 8, 0.7)
    texts = {"num_samples": 64, "length": 64}

    def row(of, seconds, **batch):
        return {**texts, "method": of["method"], "calls": of["calls"], "seconds": seconds, **batch}

    results = {
        "reference": [{**REAL, "length": 64}],
        "generation": [{**base, "seconds": 0.1}, {**ours, "seconds": 0.01}],
        "seconds": [row(base, 0.1), row(ours, 0.01)],
        "batch-seconds": [
            *(row(base, seconds, batch=batch) for batch, seconds in ((1, 3.0), (16, 0.4))),
            *(row(ours, seconds, batch=batch) for batch, seconds in ((1, 1.0), (16, 0.05))),
        ],
    }
    (table,) = BLOCKS["speed-up by batch"](results, tmp_path)
    assert list(table.heads[2:]) == ["batches of 1", "batches of 16", "batches of 64"]
    (line,) = table.body
    assert list(line[1:]) == ["ConThenDisc", "3.0 x, 1000 ms", "8.0 x, 50 ms", "10.0 x, 10 ms"]
    assert BLOCKS["speed-up by batch"]({**results, "batch-seconds": []}, tmp_path) == []


def test_a_compared_model_has_its_own_sweep_and_stands_in_the_same_table(out, results):
    copied, own = (select(results["generation"], method=name)[0] for name in ("copy: conthendisc", "conthendisc"))
    assert copied["model"] == {}  # its rows do not depend on the model beside which it is measured
    assert copied["variant_model"].items() <= own["model"].items()
    same = [name for name in own if name not in ("method", "model", "seconds")]
    assert {name: copied[name] for name in same} == {name: own[name] for name in same}
    assert "| copy: ConWithinDisc | 4 |" in (out / "report.md").read_text()
    assert {row["method"] for row in results["seconds"]} >= {"copy: conthendisc", "copy: conwithindisc"}


def test_the_bound_of_a_base_that_knows_nothing_is_that_of_a_uniform_distribution(
    pipe, corpus, evaluator, tmp_path
):
    base = LLaDA(pipe.demasker.config.backbone)
    for parameter in base.parameters():
        torch.nn.init.zeros_(parameter)
    context = Context.for_model(
        replace(pipe, base=base), corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path
    )
    texts = ["x = 1\n", "total += step\n"]
    row = bound_row(context, texts)
    bits = 2 * 63 * math.log2(base.config.vocab_size)  # BOS is given
    assert row["bits_per_byte"] == pytest.approx(bits / sum(map(len, texts)))
    assert whole_programs(context, "valid") == []  # all are longer than the canvas


def test_a_method_is_swept_over_what_it_has_and_none_over_more_candidates(results):
    guided = select(results["sweep"], method="conthendisc", calls=4)
    assert {row["register_noise"] for row in guided} == {0.5, 1.0}  # a field of `Drawing`
    own = select(results["sweep"], method="base", calls=4)
    assert {row["corrector"] for row in own} == {0.0, 0.25}
    assert len(own) == len(guided)
    assert all("register_noise" not in row for row in own)
    (row,) = select(results["generation"], method="conthendisc", calls=4)
    assert candidate_of(row).keys() == {"rule", "temperature", "register_noise"}
    assert select(results["seconds"], method="conthendisc", calls=4)[0]["register_noise"] == row["register_noise"]
    one = guided[0]
    assert candidate_of({name: one[name] for name in one if name != "swept"}).keys() == {"rule", "temperature"}
    for changes, message in (
        ({"base_sweep": ({"top_p": (0.9, 1.0)},)}, "the base has 40 candidates, guided methods have 20"),
        ({"swept": {"eta": (0.0, 1.0)}}, "eta cannot be swept for the base"),
        ({"swept": {"temperature": (-1.0,)}}, "temperature should be greater than or equal to 0"),
        ({"base_sweep": ({"top_p": (0.9,)}, {"rule": ("random",)})}, "grids of the base have different fields"),
        ({"base_sweep": ({"rule": ("random",)},) * 2}, "two candidates of the base are the same"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(FULL, **changes)


def test_real_programs_against_real_programs_have_every_number_of_generated_ones(results):
    (anchor,), (real,), generated = results["anchor"], results["reference"], results["generation"][0]
    measures = {"mauve", "mauve_pooled", "gen_ppl", "entropy", "distinct_2", "repetition", "parse_share"}
    assert measures <= set(anchor) & set(real) & set(generated)
    assert anchor["num_samples"] == TINY.num_samples
    assert anchor["gen_ppl"] != real["gen_ppl"]  # other programs


def test_every_number_of_calls_uses_the_nearest_swept_number():
    chosen = {calls: FULL.swept_for(calls, 512) for calls in FULL.calls(512, guided=False)}
    assert chosen == {8: 16, 16: 16, 32: 16, 64: 64, 128: 128, 256: 128, 512: 128}
    assert FULL.swept_for(32, 32) == 16  # no plan has more calls than tokens


def test_the_top_candidates_are_ranked_again_for_many_calls(out):
    swept = select(read_rows(out / "sweep.jsonl"), method="base")
    before, final = (select(swept, calls=calls) for calls in (TINY.swept_calls[-1], TINY.final_calls))
    assert [candidate_of(row) for row in final] == finalists(before, TINY.num_finalists)
    assert final[0]["temperature"] == max(before, key=lambda row: row["mauve"])["temperature"]


def test_ablations_use_the_candidate_of_the_method_they_vary(out):
    swept = read_rows(out / "sweep.jsonl")
    copied = {"copy: conthendisc", "copy: conwithindisc"}
    assert {row.get("method") for row in swept} == {"base", "conthendisc", "conwithindisc", *copied, None}
    assert {row.get("registers") for row in swept} == {8, None}  # a model of its own
    assert {row.get("variant") for row in swept} == {"without register noise", None}


def test_every_row_with_gen_ppl_has_diversity(results):
    rows = [row for some in results.values() for row in some if "gen_ppl" in row]
    assert rows
    assert all({"entropy", "distinct_2"} <= set(row) for row in rows)


def test_every_generated_row_has_three_costs_and_its_conditions(results):
    for row in results["generation"]:
        assert {"nfe", "flop_nfe", "seconds", "judge", "seed", "num_samples", "commit", "dtype"} <= set(row)
        assert {"temperature", "rule", "mauve_spread", "gen_ppl_spread", "ends"} <= set(row)
    drawn = select(results["generation"], method="conthendisc", calls=4)[0]
    encoded = select(results["generation"], method="encoded registers", calls=4)[0]
    assert drawn["model"]["drawing"].startswith("prior_steps 4, refresh_steps 2")
    assert encoded["model"].keys() == {"demasker", "encoder", "drawing"}
    assert drawn["nfe"] > encoded["nfe"]  # the prior is paid for
    assert drawn["flop_nfe"] > encoded["flop_nfe"]


def test_the_bases_compute_is_compared_with_all_compute_of_the_guided_model(pipe, trained):
    pipe = with_base(pipe, trained / BASE)
    loop = {"num_steps": 100, "batch_size": 10}
    run = {"lengths": [64], "base_loop": loop, "guided_loop": loop}
    longer = {**run, "base_loop": {**loop, "num_steps": 1000}}
    assert base_compute_share(pipe, {"run": run}) < 1 / 2
    assert base_compute_share(pipe, {"run": run, "base": longer}) == 10 * base_compute_share(pipe, {"run": run})
    assert base_compute_share(pipe, {"run": run}, with_priors=True) is None  # the record does not say
    whole = {**run, "prior_loop": loop, "conditional_loop": loop}
    assert base_compute_share(pipe, {"run": whole}, with_priors=True) < base_compute_share(pipe, {"run": run})
    adapted = {**run, "pretrained": {"llada": "LLaDA-8B-Base"}}
    assert base_compute_share(pipe, {"run": adapted}) is None  # others trained it
    assert base_compute_share(pipe, {}) is None
    assert base_compute_share(replace(pipe, base=None), {"run": run}) is None


def test_the_compute_of_earlier_runs_counts_on_both_sides(pipe, trained):
    pipe, shapes = with_base(pipe, trained / BASE), shapes_of(pipe)
    run = read_record(trained)
    spent = {stage: work.flops for stage, work in run["work"].items()}
    assert spent == pytest.approx(planned_flops(run, shapes))
    inherited = {"base": spent["base"] + sum(spent.values())}
    longer = {**run, "work": {"base": StageWork(flops=1.0, inherited=inherited)}}
    share = base_compute_share(pipe, {"run": run, "base": longer}, with_priors=True)
    assert share == pytest.approx(1 + spent["base"] / sum(spent.values()))
    # The base that stage guided began from counts, not the one that run.json describes.
    before = {
        **run,
        "work": {"guided": StageWork(flops=spent["guided"], inherited={"base": spent["guided"]})},
    }
    assert base_compute_share(pipe, {"run": before}) == 1 / 2
    unknown = {**run, "work": {"base": StageWork(flops=1.0, inherited={"base": None})}}
    assert base_compute_share(pipe, {"run": run, "base": unknown}) is None
    flow_map = replace(pipe.prior.config, flow_map=True)
    assert prior_stages(replace(shapes, prior=flow_map)) == ["prior", "conditional", "distilled"]


def test_compute_is_counted_as_training_counts_it(pipe, corpus, trained):
    """Registers, START and END, attention and the rows of the head count too."""
    pipe, place = with_base(pipe, trained / BASE), Workspace(corpus, trained, trained)
    run = tiny(corpus)
    spent = planned_flops(asdict(run), shapes_of(pipe))
    builds = {"base": base_stage, "guided": guided_stage, "prior": prior_stage, "conditional": conditional_stage}
    for name, stage_of in builds.items():
        stage, loop = stage_of(run, place)
        assert spent[name] == pytest.approx(loop.num_steps * loop.batch_size * stage.work().flops)


def test_a_base_must_be_a_llada_with_the_demaskers_shape(pipe, trained, tmp_path):
    with pytest.raises(ValueError, match="holds a RegisterEncoder: a base is a LLaDA"):
        with_base(pipe, trained / NETWORKS["encoder"])
    smaller = LLaDA(replace(pipe.demasker.config.backbone, num_layers=1)).init_weights(generator_for("base"))
    save_model(smaller, tmp_path / "base")
    with pytest.raises(ValueError, match="another shape than the model's demasker"):
        with_base(pipe, tmp_path / "base")


def test_equal_cost_interpolates_linearly_in_the_logarithm_of_the_cost():
    def row(method, cost, mauve, gen_ppl):
        return {
            "method": method, "flop_nfe": cost, "mauve": mauve, "mauve_spread": 0.03, "gen_ppl": gen_ppl,
            "gen_ppl_spread": 0.4,
        }  # fmt: skip

    then = [row("conthendisc", 4.0, 0.2, 30.0), row("conthendisc", 16.0, 0.6, 10.0)]
    within = [row("conwithindisc", 8.0, 0.38, 20.9), row("conwithindisc", 32.0, 0.8, 10.0)]
    eight, sixteen = comparison.differences([*then, *within])
    assert (eight.cost, sixteen.cost) == (8, 16)
    assert eight.mauve == pytest.approx((-0.02, math.hypot(0.03, 0.03)))
    assert eight.gen_ppl.mean == pytest.approx(0.9)
    assert not eight.is_no_worse  # Gen-PPL is, by more than the spread
    assert sixteen.mauve.mean == pytest.approx(0.59 - 0.6)
    table, text = comparison.equal_cost_blocks([*then, *within], 64)
    assert table.body[0] == ["8.00", "-0.020 ± 0.042", "+0.900 ± 0.566", "no"]
    assert "at 0 of 2 costs" in str(text)
    assert comparison.differences(then) == comparison.equal_cost_blocks(then, 64) == []


def test_rows_name_the_settings_of_their_method(pipe, corpus, evaluator, tmp_path):
    settings = replace(pipe.settings, decoding=Decoding(temperature=0.0, rule="remask-confidence"))
    context = Context.for_model(
        replace(pipe, settings=settings), corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path
    )
    rows = {row["method"]: (row["temperature"], row["rule"]) for row in compute_cpu_seconds(context)}
    guided = (0.0, "remask-confidence")
    assert rows == {"base": (1.0, "confidence"), "conthendisc": guided, "conwithindisc": guided}
    (found,) = copies.compute(context)
    assert {who: (one["temperature"], one["rule"]) for who, one in found["chosen"].items()} == rows


def test_rows_of_other_default_settings_are_measured_again(pipe, corpus, evaluator, tmp_path):
    plain = Decoding(temperature=1.0, rule="remask", calls=2)
    few_steps = Drawing(prior_steps=2, refresh_steps=2)
    protocol = replace(TINY, swept={}, base_sweep=(), guided_sweep=(), max_base_calls=1, drawing={})
    experiments = {
        "generation": generation.compute,
        "seconds": compute_seconds,
        "batch-seconds": compute_batch_seconds,
        "cpu-seconds": compute_cpu_seconds,
        "memorisation": copies.compute,
    }

    def computed(drawing=few_steps, **changes):
        settings = replace(pipe.settings, decoding=replace(plain, **changes), drawing=drawing)
        context = Context.for_model(
            replace(pipe, settings=settings),
            corpus=corpus, evaluator=evaluator, protocol=protocol, results=tmp_path,
        )  # fmt: skip
        return {name: compute(context) for name, compute in experiments.items()}

    first = computed()
    assert {row["batch"] for row in first["batch-seconds"]} == {1, 16}
    assert computed() == first
    for changes in ({"crop": 8}, {"corrector": 0.5}):
        changed = computed(**changes)
        for name, rows in changed.items():
            assert not [row for row in rows if row in first[name] and row.get("method") != "base"], name
        guided = select(changed["cpu-seconds"], method="conthendisc")[0]
        assert guided["decoding"] == described(replace(plain, calls=None, **changes))
        assert guided["decoding"] == changed["memorisation"][0]["chosen"]["conthendisc"]["decoding"]
        assert guided["decoding"] == changed["seconds"][0]["decoding"]
    noisy = computed(replace(few_steps, register_noise=0.5, num_registers=2))
    for name, rows in noisy.items():
        assert not [row for row in rows if row in changed[name] and row.get("method") != "base"], name
    calls = replace(pipe, settings=replace(pipe.settings, decoding=replace(plain, calls=3)))
    assert own_settings(calls, Method.CON_THEN_DISC)["calls"] == 3


def test_rows_that_do_not_name_their_decoding_are_readable_and_not_reused(pipe, corpus, evaluator, tmp_path):
    context = Context.for_model(pipe, corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path)
    file = context.store.file("cpu-seconds")
    old = [
        {name: value for name, value in row.items() if name != "decoding"} for row in compute_cpu_seconds(context)
    ]
    write_rows(file, old)
    assert context.store.rows("cpu-seconds") == old
    again = compute_cpu_seconds(context)
    assert {row["decoding"] for row in again} == {"temperature 1.0"}
    assert read_rows(file) == again


def test_runs_that_programs_share_with_training_programs_are_told_beside_those_of_real_ones(results):
    (found,) = results["memorisation"]
    assert set(found["runs"]) == {"base", "conthendisc", "conwithindisc", "real"}
    assert all(one["num_samples"] == TINY.num_samples for one in found["runs"].values())
    one = describe_runs([Run(60), Run(20), Run(16), Run()])
    assert (one["mean"], one["median"], one["max"], one["long_share"]) == (24, 18, 60, 0.25)


def point(method, calls, flop_nfe, nfe, mauve, gen_ppl=10.0, entropy=3.0):
    return {
        "method": method, "calls": calls, "length": 64, "flop_nfe": flop_nfe, "nfe": nfe, "mauve": mauve,
        "mauve_spread": 0.0, "gen_ppl": gen_ppl, "gen_ppl_spread": None, "entropy": entropy,
    }  # fmt: skip


REAL = {"gen_ppl": 9.0, "gen_ppl_spread": 0.5, "entropy": 3.0}
BASE_POINTS = [point("base", 8, 8, 8, 0.5), point("base", 64, 64, 64, 0.6)]


def test_speedups_are_of_flops_unless_asked_otherwise():
    rows = [*BASE_POINTS, point("conthendisc", 8, 16.0, 32.0, 0.7)]
    assert speedups(rows, REAL)["conthendisc"].factor == 4
    assert speedups(rows, REAL, unit="nfe")["conthendisc"].factor == 2
    assert speedups(rows, REAL)["base"].factor == 1


def test_speedups_are_over_the_base_at_its_best_number_of_calls_and_beside_it_at_one_call_per_token():
    rows = [*BASE_POINTS, point("base", 32, 32, 32, 0.6), point("conwithindisc", 8, 16.0, 40.0, 0.7)]
    rows = [{**row, "seconds": row["nfe"] / 10} for row in rows]
    real = {**REAL, "length": 64, "mauve": 0.9, "mauve_spread": 0.1}
    assert own_best_calls(rows, real) == 32
    at_best, per_token = speedup_tables(rows, real)
    assert at_best.heads[1:4] == per_token.heads[1:4] == ["by FLOPs", "by time", "by the paper's NFE"]
    assert at_best.body == [
        ["ConWithinDisc", "2.00 x, 8 calls", "0.800 x, 8 calls", "0.800 x, 8 calls", "2.00 x, 8 calls"]
    ]
    assert at_best.caption == "Speed-up over the base at its best number of calls (32), length 64"
    assert [line[:2] for line in per_token.body] == [
        ["base", "2.00 x, 32 calls"],
        ["ConWithinDisc", "4.00 x, 8 calls"],
    ]
    unseen = [{**row, "seconds": None} for row in rows]
    assert speedup_tables(unseen, real)[0].body[0][1:4] == ["2.00 x, 8 calls", "-", "0.800 x, 8 calls"]


def test_published_speedups_stand_beside_the_papers_unit_alone():
    rows = [point("base", 256, 256, 256, 0.6), point("conwithindisc", 8, 16.0, 32.0, 0.7)]
    rows = [{**row, "length": 256, "seconds": 1.0} for row in rows]
    at_best, per_token = speedup_tables(rows, {**REAL, "length": 256})
    assert list(per_token.heads[-2:]) == ["by the paper's NFE", "by the paper's NFE, published"]
    assert [line[-1] for line in per_token.body] == ["-", "6 x"]
    assert not [head for head in at_best.heads if "published" in head]


def test_a_speedup_by_mauve_alone_overlooks_fluency_and_diversity():
    rows = [*BASE_POINTS, point("conthendisc", 8, 16.0, 32.0, 0.7, gen_ppl=90.0, entropy=5.0)]
    assert speedups(rows, REAL)["conthendisc"] is None
    assert speedups_by_mauve(rows, REAL)["conthendisc"].factor == 4
    assert speedups_by_mauve(rows, REAL)["base"].factor == 1


# ---------------------------------------------------------------- the evaluator


def test_gen_ppl_is_over_all_tokens_and_skips_empty_texts(evaluator, judge):
    texts = ["def f(x):\n", "", "return x\n", "total = 1\n", "total = 2\n"]
    scores = judge.scores(texts)
    expected = math.exp(sum(score.nats for score in scores) / sum(score.num_tokens for score in scores))
    found = evaluator.score(texts)
    assert found["gen_ppl"] == pytest.approx(expected)
    assert found["gen_ppl_spread"] > 0
    assert found["bits_per_byte"] > 0
    assert found["empty_share"] == 0.2
    assert math.isnan(evaluator.score(["", ""])["gen_ppl"])
    assert isinstance(judge, Judge)
    assert gen_ppl(scores) == (found["gen_ppl"], found["gen_ppl_spread"])


def test_mauve_is_high_for_a_copy_of_the_reference_and_low_for_other_texts(evaluator):
    texts = [f"value_{place} = {place} * 'ab'\n" for place in range(20)]
    assert evaluator.evaluate(texts, evaluator.reference(texts))["mauve"] > 0.9
    other = evaluator.evaluate([f"    {place} " * 20 for place in range(20)], evaluator.reference(texts))
    assert other["mauve"] < 0.1
    assert {"mauve_pooled", "mauve_pooled_spread"} <= set(other)


def test_other_judges_add_their_numbers_unless_they_are_related_to_the_model(evaluator):
    texts = [f"value_{place} = {place}\n" for place in range(20)]
    other = ByteChain(texts)
    other.name, other.families = "another chain", ("chain-2x256-256",)
    both = replace(evaluator, other_judges=[other])
    row = both.evaluate(texts, both.reference(texts))
    alone = replace(evaluator, judge=other)
    expected = alone.evaluate(texts, alone.reference(texts))
    opinion = row.pop("other_judges")["another chain"]
    assert opinion == {name: expected[name] for name in opinion}
    assert {"mauve", "mauve_pooled", "gen_ppl"} <= set(opinion)
    assert row == evaluator.evaluate(texts, evaluator.reference(texts))
    assert both.unrelated_to({"chain-2x256-256"}) == replace(evaluator, other_judges=[])


def test_only_mauve_is_left_out_for_too_few_texts(evaluator):
    texts = [f"value_{place} = {place}\n" for place in range(20)]
    strict = replace(evaluator, min_texts_for_mauve=21)
    complete, row = (one.evaluate(texts, one.reference(texts)) for one in (evaluator, strict))
    left_out = {"mauve", "mauve_spread", "mauve_pooled", "mauve_pooled_spread"}
    assert {name for name, value in row.items() if value is None} == left_out
    assert {**complete, **dict.fromkeys(left_out)} == row


# ---------------------------------------------------------------- the report


def test_numbers_and_their_spreads_end_at_the_same_place():
    assert [number(value) for value in (None, 0.12345, 12.345, 1234.5, 0.0, 7)] == [
        "-", "0.123", "12.3", "1,234", "0.000", "7",
    ]  # fmt: skip
    assert with_spread(0.6181, 0.0049) == "0.618 ± 0.005"
    assert with_spread(19.43, None) == "19.4"


def test_a_document_is_written_as_markdown_and_html_without_columns_that_are_all_unknown():
    table = Table(["", "MAUVE", "MAUVE, published", "CER"], [["a < b", "0.6", "0.62", "-"]], "Length 512")
    sections = [Section("First", [Text("Some\n   **strong** text."), table, Listing("Code", "x = '```'")])]
    markdown = as_markdown("Title", sections, {})
    assert "|  | MAUVE | MAUVE, published |\n| --- | ---: | ---: |\n| a < b | 0.6 | 0.62 |" in markdown
    assert "Some **strong** text." in markdown
    assert "````python\nx = '```'\n````" in markdown
    html = as_html("Title", sections, {})
    assert "<td>a &lt; b</td>" in html
    assert '<td style="text-align:right">0.62</td>' in html
    assert "<strong>strong</strong>" in html
    assert '<h2 id="s1">First</h2>' in html
    assert '<a href="#s1">First</a>' in html
    assert "prefers-color-scheme: dark" in html
    assert "CER" not in html


def test_html_holds_its_drawings_and_escapes_tags_in_texts():
    panel = Panel(title="Loss < 1", x_label="x", y_label="y", curves=[])
    sections = [Section("A", [Text("<script>x</script>"), Picture("loss-8", [panel], "A caption.")])]
    html = as_html("Title", sections, {"loss-8": "<svg>drawn</svg>"})
    assert "<p><svg>drawn</svg></p>\n<p>A caption.</p>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "![Loss < 1](figures/loss-8.svg)" in as_markdown("Title", sections, {"loss-8": "figures/loss-8.svg"})
    assert "loss-8" not in as_html("Title", sections, {})  # not drawn


def test_a_frontier_joins_the_settings_that_no_other_beats_in_entropy_and_gen_ppl():
    assert frontier([(3.0, 5.0), (2.0, 6.0), (4.0, 9.0), (4.0, 8.0)]) == [(3.0, 5.0), (4.0, 8.0)]
    real = {"length": 64, "entropy": 4.0, "gen_ppl": 6.0, "gen_ppl_spread": 0.1}
    swept = [
        {"method": method, "calls": calls, "entropy": entropy, "gen_ppl": 7.0}
        for method, calls in (("base", 8), ("conthendisc", 8), ("base", 64))
        for entropy in (1.0, 3.0)
    ]
    (panel,) = frontier_picture(swept, real).panels  # with 64 calls the base alone was swept
    assert [(curve.name, list(curve.x), curve.cloud) for curve in panel.curves] == [
        ("base", [3.0], [(3.0, 7.0)]),
        ("ConThenDisc", [3.0], [(3.0, 7.0)]),
    ]
    assert frontier_picture(select(swept, method="base"), real) is None
    assert frontier_table(select(swept, method="base"), real) is None


def test_a_frontier_is_read_at_equal_entropy_on_its_lower_hull():
    hull = lower_hull([(2.0, 4.0), (3.0, 10.0), (4.0, 16.0)])
    assert hull == [(2.0, pytest.approx(4.0)), (4.0, pytest.approx(16.0))]  # a mixture of both beats the third
    assert at_entropy(hull, 3.0) == pytest.approx(8.0)
    assert at_entropy(hull, 1.0) == pytest.approx(4.0)  # more varied is no worse
    assert at_entropy(hull, 4.1) is None
    real = {"length": 64, "entropy": 4.0, "gen_ppl": 6.0, "gen_ppl_spread": 0.1}
    swept = [
        {"method": method, "calls": 8, "entropy": entropy, "gen_ppl": gen_ppl}
        for method in ("base", "conthendisc")
        for entropy, gen_ppl in ((3.5, 4.0), (4.0, 9.0))
    ]
    table = frontier_table(swept, real)
    assert table.heads[3:] == ["entropy 3.50", "entropy 3.75", "entropy 4.00", "entropy 4.25"]
    assert table.body == [
        ["base", "8", "2", "4.00", "6.00", "9.00", "-"],
        ["ConThenDisc", "8", "2", "4.00", "6.00", "9.00", "-"],
        ["real programs", "-", "-", "-", "-", "6.00", "-"],
    ]


def test_the_report_is_whole_and_understood_without_the_paper(out):
    text, html = ((out / f"report.{kind}").read_text() for kind in ("md", "html"))
    for heading in ("Overview", "Measures", "Guided demasker", "Autoencoder", "Generation", "Noise on registers",
                    "Interpolation", "Priors", "Memorisation", "Number of registers", "Time of the refresh",
                    "Samples", "Training ablations", "two sentences", "Conditions"):  # fmt: skip
        assert heading in text
    assert text.count("**Better:**") >= 10
    assert "compare ratios and the shapes of curves, not absolute values" in text
    assert "length 256, 512, 1024. No model of this length was given." in text
    assert "'without nested dropout=DIR'" in text  # not given, and said so
    assert "'without register noise=DIR'" not in text  # given
    assert "less compute, which flatters" in text
    assert "if the priors are counted too" in text
    assert "**Not measured" not in text
    assert ": the base (in " in text
    assert "0.956 ± 0.010" in text  # the paper's own, verbatim
    assert "<link" not in html
    assert "src=" not in html


def test_what_has_no_rows_is_named_as_not_measured(results):
    some = {name: rows for name, rows in results.items() if name not in ("refresh", "prdc", "noise")}
    for name in ("model", "reference"):
        some[name] = [*some[name], {**some[name][0], "length": 128}]
    text = as_markdown("Title", report(some), {})
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    for title, line in {
        "Time of the refresh (App. G ii)": "**Not measured**: there are no rows of `crocodil reproduce refresh`.",
        "Noise on registers (Fig. 7)": "**Not measured**: there are no rows of `crocodil reproduce noise`.",
        register_priors.TITLE: "**Not measured**: there are no rows of `crocodil reproduce prdc`.",
        "Autoencoder (Tables 1 and 2, Fig. 5)": "**Not measured at length 128**",
    }.items():
        assert line in sections[title]
    assert "PSNR" in sections[register_priors.TITLE]


def test_rows_without_a_pooled_mauve_say_that_it_was_not_measured(results):
    old = [{name: value for name, value in row.items() if "pooled" not in name} for row in results["generation"]]
    (table,) = [
        block
        for block in show_generation(old, results["reference"]).blocks
        if getattr(block, "caption", "") == "Length 64"
    ]
    index = list(table.heads).index("MAUVE, pooled")
    assert {line[index] for line in table.body[:-1]} == {"not measured"}
    assert table.body[-1][index] != "not measured"  # of real programs it was
    assert "MAUVE, pooled" in table.without_unknown_columns().heads


def test_other_judges_have_a_table_of_their_own(results):
    opinion = {"mauve": 0.5, "mauve_spread": 0.1, "mauve_pooled": 0.4, "mauve_pooled_spread": 0.1, "gen_ppl": 9.0,
               "gen_ppl_spread": 0.2}  # fmt: skip
    rows = [{**row, "other_judges": {"smollm2-135m": opinion}} for row in results["generation"]]
    assert other_judges_table(results["generation"], *results["reference"], None) == []
    (table,) = other_judges_table(rows, *results["reference"], None)
    assert table.body[0] == ["base, 4 calls", "smollm2-135m", "0.500 ± 0.100", "0.400 ± 0.100", "9.00 ± 0.20"]
    assert len(table.body) == len(rows)


def test_published_numbers_stand_beside_ours_verbatim_and_odd_ones_are_marked():
    ours = {
        "length": 512, "block": 128, "calls": 16, "gen_ppl": 12.0, "gen_ppl_spread": 0.5, "bert_score": 0.9,
        "cer": 0.2, "exact_share": 0.1, "entropy": 4.0, "nfe": 16.0, "flop_nfe": 17.0, "seconds": 0.1,
    }  # fmt: skip
    text = as_markdown("Title", [autoencoder.show([ours])], {})
    assert "| 12.0 ± 0.5 | 18.715 | 0.900 | 0.945 | 0.200 | 1.229 † |" in text
    assert "decision D13" in text
    assert "by the judge" not in text  # older rows have no such column
    text = as_markdown("Title", [autoencoder.show([ours | {"bert_score_judge": 0.8}])], {})
    assert "| 0.900 | 0.945 | 0.800 | 0.200 |" in text


def test_the_summary_holds_the_headline_numbers(results):
    found = json.loads(json.dumps(summary(results), allow_nan=False))
    methods = {"base", "conthendisc", "conwithindisc", "copy: conthendisc", "copy: conwithindisc"}
    assert set(found["speedup"]["64"]) == methods
    assert list(found["speedup"]["64"]["base"]) == ["flops", "seconds", "nfe"]
    assert found["speedup"]["64"]["base"]["flops"] == 1
    assert found["own_best_calls"]["64"] in (4, 64)
    assert set(found["speedup_at_one_call_a_token"]["64"]) == set(found["speedup"]["64"])
    assert (
        found["base_compute_share"]["64"]["with priors"]
        < found["base_compute_share"]["64"]["demasker and encoder"]
    )
    assert set(found["memorisation"]["64"]) == {"base", "conthendisc", "conwithindisc", "real"}
    assert (found["setting"], found["seed"], found["num_samples"]["64"]) == ("tiny", 0, TINY.num_samples)
    assert {"judge", "corpus", "model", "version"} <= set(found)
    assert set(found["autoencoder_cer"]["64"]) == {"4", "16"}
    assert found["cpu_seconds_per_program"]["64"]["conwithindisc"] > 0
    for name in ("parse_share", "entropy"):
        assert set(found[name]["64"]) == {*methods, "encoded registers", "real"}


def test_seconds_are_measured_apart_and_stand_in_the_report(results):
    points = [row for row in results["generation"] if row["method"] != "encoded registers"]
    assert [(row["method"], row["calls"]) for row in results["seconds"]] == [
        (row["method"], row["calls"]) for row in points
    ]
    clocked = [{**row, "seconds": 1000.0 * place} for place, row in enumerate(results["seconds"], start=1)]
    shown = timed({**results, "seconds": clocked})["generation"]
    assert [row["seconds"] for row in shown if row["method"] != "encoded registers"] == [
        row["seconds"] for row in clocked
    ]
    unseen = timed({**results, "seconds": []})
    assert {row["seconds"] for row in unseen["generation"]} == {None}
    assert summary(unseen)["speedup"]["64"]["base"]["seconds"] is None
    assert summary(unseen)["speedup"]["64"]["base"]["flops"] == summary(results)["speedup"]["64"]["base"]["flops"]


def test_a_cpu_is_timed_with_a_laptops_threads_however_many_there_are(pipe, corpus, evaluator, tmp_path):
    context = Context.for_model(pipe, corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(TINY.cpu_threads + 1)
    try:
        rows = compute_cpu_seconds(context)
        assert torch.get_num_threads() == TINY.cpu_threads + 1  # as they were
    finally:
        torch.set_num_threads(before)
    assert {row["threads"] for row in rows} == {TINY.cpu_threads}


def test_without_matplotlib_the_report_has_all_its_tables(results, tmp_path, monkeypatch):
    monkeypatch.setattr("crocodil.reproduce.report.can_draw", lambda: False)
    text = write_report(results, tmp_path).with_suffix(".md").read_text()
    assert "pip install 'crocodil[figures]'" in text
    assert "![" not in text
    assert text.count("| --- |") >= 10


def test_unknown_experiments_and_models_of_one_length_are_refused(pipe, corpus, evaluator, tmp_path):
    context = Context.for_model(pipe, corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path)
    with pytest.raises(ValueError, match="no experiment 'fig6': choose all, or some of model, reference"):
        compute_all([context], ["fig6"])
    with pytest.raises(ValueError, match="two models have the same length"):
        compute_all([context, context], ["demasker"])


def test_figures_are_the_same_bytes_for_the_same_rows():
    pytest.importorskip("matplotlib")
    curves = [Curve("a", [1, 2, 4], [0.5, None, 0.7], [0.1, None, None]), Curve("none", [1], [None])]
    curves += [Curve("oracle", [1, 2], [1, 2], is_reference=True), Curve("8", [1], [1], is_ordered=True)]
    panel = Panel(
        title="t", x_label="x", y_label="y", curves=curves, log_x=True, log_y=True, real_y=Real(0.9, 0.1)
    )
    panels = [panel, replace(panel, real_x=Real(2.0)), replace(panel, real_y=None)]
    drawn = figures.draw("name", panels)
    assert drawn.startswith("<svg")
    assert drawn == figures.draw("name", panels)
    assert drawn.count(">real programs<") == 1  # one legend for all panels


def test_two_sentences_have_four_samplers():
    section = two_sentences.show(two_sentences.rows(lambda line: None, (2, 2, 2)))
    assert len(section.blocks[-1].body) == 4


# ---------------------------------------------------------------- the verbs


def test_a_judge_of_the_models_lineage_is_refused_before_anything_is_computed(pipe, corpus, evaluator, tmp_path):
    demasker = copy(pipe.demasker)
    backbone = replace(demasker.config.backbone, parents=evaluator.judge.families)
    demasker.config = replace(demasker.config, backbone=backbone)
    child = replace(pipe, demasker=demasker)
    for model, variants in ((child, {}), (pipe, {"child": child})):
        with pytest.raises(ValueError, match=r"byte chain may not judge this model: .* come from chain-1x256-256"):
            Context.for_model(
                model, corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path, variants=variants
            )
    assert lineage(pipe) == set()


def test_reproduce_continues_where_it_stopped_and_makes_the_same_report_from_the_files(
    folder, corpus, judge_folder, tmp_path
):
    options = ("--preset", "tiny", "--model", folder, "--data", corpus.directory, "--judge", judge_folder)
    options = (*options, "--length", 64)
    assert run("reproduce", "autoencoder", *options, "--out", tmp_path).exit_code == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    rows = tmp_path / "autoencoder.jsonl"
    first, *_ = rows.read_text().splitlines(keepends=True)
    rows.write_text(first)  # the others are lost
    assert run("reproduce", "autoencoder", *options, "--out", tmp_path).exit_code == 0
    assert rows.read_text().startswith(first)
    assert rows.read_text().count("\n") == before["autoencoder.jsonl"].count(b"\n")
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert run("report", "--out", tmp_path).exit_code == 0
    assert after == {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}


@pytest.fixture(scope="module")
def fixed(fresh_corpus, judge_folder):
    return FixedProtocol(
        date="2026-11-16",
        judges=(str(judge_folder),),
        embedder=None,
        seed=3,
        test_corpus=corpus_fingerprint(fresh_corpus),
        protocol=replace(TINY, name="fixed"),
    )


def test_a_model_is_measured_at_each_of_its_lengths_by_one_protocol_file(
    folder, corpus, fresh_corpus, fixed, tmp_path
):
    file, out = tmp_path / "protocol.json", tmp_path / "results"
    fixed.save(file)
    options = ("psnr", "--protocol", file, "--model", folder, "--data", corpus.directory, "--out", out)
    assert "the protocol fixes a test corpus with" in str(run("reproduce", *options).exception)
    assert "the protocol compares no model 'x': it names none" in str(
        run("reproduce", *options, "--test", fresh_corpus.directory, "--compare", f"x={folder}").exception
    )
    replace(fixed, date="draft").save(tmp_path / "draft.json")
    draft = ("psnr", "--protocol", tmp_path / "draft.json", "--data", corpus.directory)
    assert "is a draft: give it a date" in str(run("reproduce", *draft).exception)
    options = (*options, "--test", fresh_corpus.directory)
    made = run("reproduce", *options)
    assert made.exit_code == 0, made.output
    summed = json.loads((out / "summary.json").read_text())
    assert set(summed["model"]) == {"48", "64"}
    assert summed["test_corpus"] == fixed.test_corpus
    assert {row["length"] for row in read_rows(out / "psnr.jsonl")} == {48, 64}
    assert "6/6 psnr, length 64" in made.stderr
    for row in read_rows(out / "reference.jsonl"):
        assert row["protocol"] == sha256(file.read_bytes()).hexdigest()
        assert (row["setting"], row["seed"], row["test_corpus"]) == ("fixed", 3, fixed.test_corpus)
    assert fixed.test_corpus in (out / "report.md").read_text()
    refused = run("reproduce", *options, "--length", 100).exception
    assert "no model was trained at length 100: choose from 48, 64" in str(refused)
    assert "--seed and --protocol exclude each other" in str(run("reproduce", *options, "--seed", 0).exception)
    replace(fixed, seed=4).save(file)
    assert "test programs are measured by one protocol only" in str(run("reproduce", *options).exception)
    (out / "protocol.json").unlink()  # the rows are still of the other file
    assert run("reproduce", *options).exception is not None
    assert not (out / "protocol.json").exists()  # a refused run leaves nothing behind


def test_rows_without_a_protocol_file_stand_beside_others_only_if_their_test_programs_differ(tmp_path):
    rows = Store(tmp_path, {"corpus": "a"})
    rows.compute("reference", [Job({}, dict)])
    names = ("reference", "generation")
    check_same_protocol(rows, names)
    check_same_protocol(Store(tmp_path, {"corpus": "a", "test_corpus": "b", "protocol": "1"}), names)
    for conditions in ({"corpus": "a"}, {"corpus": "b", "test_corpus": "a"}):
        with pytest.raises(ValueError, match=r"reference\.jsonl has rows of no protocol file, and"):
            check_same_protocol(Store(tmp_path, {"protocol": "1", **conditions}), names)


def test_a_protocol_file_has_exactly_the_fields_and_the_rules_of_this_version(fixed, tmp_path):
    file = tmp_path / "protocol.json"
    fixed.save(file)
    assert read_protocol(file) == (fixed, sha256(file.read_bytes()).hexdigest())
    for change, message in (
        ({"judge": "x"}, r"protocol\.json: fields of FixedProtocol differ: judge"),
        ({"date": "soon"}, "date should be a date such as 2026-11-16, not 'soon'"),
        ({"matching": "MAUVE"}, "matching should be the rule of this version"),
        ({"choice": BY_AIMS}, "choice should be 'the highest MAUVE on valid"),
        ({"judges": []}, "judges should name at least one judge"),
        ({"protocol": asdict(TINY)}, "'tiny' is the name of a preset"),
        ({"protocol": {**asdict(fixed.protocol), "calls": 8}}, "fields of Protocol differ: calls"),
        ({"protocol": {**asdict(fixed.protocol), "num_samples": 0}}, "num_samples should be greater than"),
    ):
        file.write_text(json.dumps({**asdict(fixed), **change}))
        with pytest.raises(ValueError, match=message):
            read_protocol(file)


def test_reproduce_says_what_is_missing(tmp_path):
    assert "--data is required" in str(run("reproduce", "all").exception)
    assert "conditions.json is missing" in str(run("reproduce", "report", "--out", tmp_path).exception)


@pytest.mark.parametrize("method", ["base", "conthendisc", "conwithindisc"])
def test_evaluate_reads_the_texts_that_generate_writes(pipe, corpus, evaluator, monkeypatch, method):
    decoding, drawing = Decoding(rule="remask-confidence"), Drawing(prior_steps=3, refresh_steps=2)
    settings = replace(pipe.settings, decoding=decoding, drawing=drawing)
    own = replace(pipe, settings=settings).at_length(64)
    written, read = own.generate(4, method=method, seed=3), []
    monkeypatch.setattr(ByteChain, "scores", keeping(ByteChain.scores, read))
    found = evaluate_model(own, corpus, evaluator, method=Method(method), count=4, split="test", seed=3)
    assert read[-1] == written.texts
    assert found["calls"] == 4
    assert (found["temperature"], found["rule"]) == (
        (1.0, "confidence") if method == "base" else (0.0, "remask-confidence")
    )
    assert found["nfe"] == written.nfe


def keeping(scores, read):
    """Return the judge's method with a record of the texts it reads."""

    def kept(self, texts, *, batch_size=8):
        read.append(list(texts))
        return scores(self, texts, batch_size=batch_size)

    return kept


def test_evaluated_texts_are_cut_to_the_length_of_real_programs(corpus, evaluator):
    long = ["".join(f"value_{n} = {n} * {place}\n" for n in range(60)) for place in range(6)]
    row = evaluate_texts(long, corpus, evaluator, length=64, split="valid")
    cut = evaluate_texts([text + "more = 1\n" for text in long], corpus, evaluator, length=64, split="valid")
    assert row["num_cut"] == 6
    assert cut["gen_ppl"] == row["gen_ppl"]
    assert cut["mauve"] == row["mauve"]
    assert set(row["real"]) == {name for name in row if name in row["real"]}  # the same columns for real programs
    assert row["real"] == cut["real"]


def test_evaluate_takes_a_model_or_the_texts_of_any_other_model(folder, corpus, judge_folder, tmp_path):
    common = ("--data", corpus.directory, "--judge", judge_folder)
    made = run("evaluate", "--model", folder, "--method", "conthendisc", "--calls", 4, "--count", 20, *common)
    assert made.exit_code == 0, made.output
    row = json.loads(made.stdout)
    assert (row["method"], row["calls"], row["num_samples"], row["split"]) == ("conthendisc", 4, 20, "valid")
    assert row["mauve"] is row["real"]["mauve"] is None
    assert row["gen_ppl"] > 0
    assert row["real"]["gen_ppl"] > 0
    assert "MAUVE was left out: there are 20 texts and" in made.stderr
    assert "at least 200 on each side" in made.stderr
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(json.dumps({"text": f"total = {place}\n"}) + "\n" for place in range(20)))
    made = run("evaluate", "--samples", file, "--length", 64, *common)
    assert made.exit_code == 0, made.output
    row = json.loads(made.stdout)
    assert row["parse_share"] == 1
    assert row["bits_per_byte"] > 0
    assert row["num_cut"] == 0
    file.write_text('{"texts": 1}\n')
    assert "line 1" in str(run("evaluate", "--samples", file, *common).exception)


def test_progress_shows_the_key_of_a_row_unless_it_is_long():
    assert note_of({"method": "base", "calls": 4}) == "base, 4"
    assert note_of(dict.fromkeys("abcdefgh", "9fb69b4fa241")) == ""
