"""Answers to prompts are measured: exact values on pairs made by hand, and rows of every method."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_judges import save_language_model
from typer.testing import CliRunner

from crocodil import cli
from crocodil.corpus.pairs import Pair, Pairs, write_pairs
from crocodil.judges import Evaluator, LanguageModel
from crocodil.judges.continuing import continued
from crocodil.judges.judged_answers import JudgedPairs
from crocodil.pipeline import Crocodil, Settings
from crocodil.reproduce.context import Context
from crocodil.reproduce.experiments import completions
from crocodil.reproduce.experiments.completions import most_common, place_of
from crocodil.reproduce.protocol import TINY
from crocodil.reproduce.store import read_rows, select
from crocodil.runtime.sandbox import can_run_checks
from crocodil.sampling.configs import Decoding

DOUBLE = 'def double(x):\n    """Return twice x.\n\n    >>> double(2)\n    4\n    """\n'
PAIRS = [
    Pair(prompt=DOUBLE, answer="    return 2 * x", kind="body", split="test"),
    Pair(prompt=DOUBLE, answer="    return x + x", kind="body", split="test"),
    Pair(prompt="def f():\n", answer="    return 1", suffix="\n\n\nassert f()\n", kind="own", split="test"),
    Pair(prompt="Say hello.", answer=" Hello!", kind="own", split="test"),  # not Python
]
ANSWERS = ["    return 2 * x", "    return x * x * x", "  return 0", ""]


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory):
    return save_language_model(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def judge(judge_folder):
    return LanguageModel.load(judge_folder)


def test_numbers_of_answers_made_by_hand_are_known(judge):
    row = JudgedPairs(PAIRS).judge(ANSWERS, judge)
    assert row["exact_match"] == 0.25
    assert row["edit_similarity"] == pytest.approx((1 + 15 / 20 + 9 / 12 + 0) / 4)
    assert (row["parse_share"], row["num_parse"]) == (1, 3)
    assert (row["column_share"], row["num_column"]) == (pytest.approx(2 / 3), 3)
    assert (row["indentation_share"], row["num_indentation"]) == (pytest.approx(2 / 3), 3)
    if can_run_checks():  # a doctest that fails, and an assert that does, are counted as failed
        assert (row["pass_share"], row["num_pass"]) == (pytest.approx(1 / 3), 3)
    assert (row["empty_share"], row["num_samples"]) == (0.25, 4)
    scores = judge.scores_given([pair.prompt for pair in PAIRS[:3]], ANSWERS[:3])
    nats, num_bytes = sum(score.nats for score in scores), sum(map(len, ANSWERS))
    assert row["bits_per_byte"] == pytest.approx(nats / num_bytes / 0.6931471805599453)
    assert row["exact_match_spread"] == pytest.approx(0.25)


def test_real_answers_have_every_share_at_one_and_without_a_judge_no_bits():
    row = JudgedPairs(PAIRS, runs_checks=False).judge([pair.answer for pair in PAIRS])
    assert row["exact_match"] == row["edit_similarity"] == row["indentation_share"] == 1
    assert row["bits_per_byte"] is None
    assert (row["pass_share"], row["num_pass"]) == (None, 0)


# ---------------------------------------------------------------- the causal model


def test_a_text_given_a_prompt_costs_its_tokens_after_those_of_the_prompt(judge):
    prompt, text = "def f3(x):\n", "    y = x * 3\n" * 12  # longer than a window
    (after, row) = judge.tokens([prompt, text])
    (score,) = judge.scores_given([prompt], [text])
    assert (score.num_tokens, score.num_bytes) == (len(row), len(text))
    assert judge.scores_given([""], [prompt]) == judge.scores([prompt])
    short = row[:9]
    ids = torch.tensor([[judge.start_id, *after, *short]])
    log_probs = judge.network(input_ids=ids).logits.log_softmax(dim=-1)[0, len(after) : -1]
    expected = -log_probs.gather(1, torch.tensor(short)[:, None]).sum().item()
    (part,) = judge.scores_given([prompt], [judge.tokenizer.decode(short)])
    assert part.nats == pytest.approx(expected, rel=1e-4)


def test_a_causal_model_continues_with_its_most_probable_tokens_alone_or_in_a_batch(judge):
    prompts = [("def f1(x):\n", ""), ("def f2(x):\n    y = x * 2\n", "\n")]
    made = continued(judge, prompts, max_tokens=5)
    assert made == [continued(judge, [prompt], max_tokens=5)[0] for prompt in prompts]
    ids = [judge.start_id, *judge.tokens([prompts[0][0]])[0]]
    start = len(ids)
    for _ in range(made[0].num_calls):
        ids.append(int(judge.network(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert made[0].text == judge.tokenizer.decode(ids[start:])
    assert made[0].num_positions == start + made[0].num_calls - 1


# ---------------------------------------------------------------- one command


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two kinds of test pairs, and training pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    answers = ["    return total", "        return total", "    pass"]
    training = [
        {"prompt": f"def f{n}():\n", "answer": answer, "kind": "body", "split": "train"}
        for n, answer in enumerate(answers)
    ]
    testing = [
        {"prompt": f"def g{n}(x):\n", "answer": "    return x", "suffix": suffix, "kind": kind, "split": "test"}
        for n, (kind, suffix) in enumerate([("body", ""), ("body", ""), ("own", "\n"), ("own", "\n\n\ng(1)\n")])
    ]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*training, *testing]))
    write_pairs(file, folder / "pairs")
    return folder / "pairs"


def test_the_most_common_answer_stands_at_the_column_of_each_prompt(pairs):
    methods = [Pair(prompt="    def g(self):\n", answer="        x", kind="body", split="test"), PAIRS[0]]
    found = most_common(Pairs(pairs), "body", methods)
    assert found == ["        return total", "    return total"]
    assert place_of(PAIRS[3]) == ("Say hello.", "", False)


@pytest.fixture(scope="module")
def results(pairs, corpus, trained, judge_folder, tmp_path_factory):
    """The folder that one command writes."""
    networks = {
        name: trained / stage / "model" / network
        for name, stage, network in (
            ("demasker", "guided", "demasker"), ("encoder", "guided", "encoder"), ("prior", "prior", "denoiser"),
            ("conditional", "conditional", "denoiser"), ("base", "base", "demasker"),
        )
    }  # fmt: skip
    settings, tokenizer = Settings(length=64, lengths=(64,)), corpus.directory / "tokenizer.json"
    folder = tmp_path_factory.mktemp("completions")
    pipe = Crocodil.assemble(networks, tokenizer=tokenizer, settings=settings, device="cpu")
    pipe.save_pretrained(folder / "model")
    words = [
        "reproduce", "completions", "--preset", "tiny", "--model", folder / "model", "--data", corpus.directory,
        "--judge", judge_folder, "--pairs", pairs, "--causal", judge_folder, "--out", folder / "results",
        "--device", "cpu",
    ]  # fmt: skip
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return folder / "results"


@pytest.fixture(scope="module")
def rows(results):
    return read_rows(results / "completions.jsonl")


def test_every_kind_is_answered_by_every_method_once_and_rows_hold_their_conditions(rows):
    methods = {"real", "empty", "most common", "causal", "conwithindisc", "conthendisc", "base"}
    assert sorted((row["kind"], row["method"]) for row in rows) == sorted(
        (kind, method) for kind in ("body", "own") for method in methods
    )
    for row in rows:
        assert row["num_samples"] == 2
        assert {"judge", "seed", "commit", "pairs", "split", "nfe", "flop_nfe", "seconds", "answers"} < set(row)
        assert all(f"{name}_spread" in row for name in ("exact_match", "edit_similarity", "parse_share"))
        has_bits = row["method"] != "causal" and row["empty_share"] < 1  # no judge judges its own texts
        assert (row["bits_per_byte"] is not None) == has_bits
    assert all(row["exact_match"] == 1 for row in select(rows, method="real"))


def test_answers_are_measured_again_if_the_default_settings_change(results, corpus, judge_folder, pairs, tmp_path):
    pipe = Crocodil.from_pretrained(results.parent / "model", device="cpu")
    evaluator = Evaluator(judge=LanguageModel.load(judge_folder), tokenizer=pipe.tokenizer)

    def computed(**decoding):
        settings = replace(pipe.settings, decoding=Decoding(**decoding))
        context = Context.for_model(
            replace(pipe, settings=settings),
            corpus=corpus, evaluator=evaluator, protocol=TINY, results=tmp_path, pairs=Pairs(pairs),
        )  # fmt: skip
        return select(completions.compute(context), method="conthendisc")

    first = computed(temperature=1.0)
    assert computed(temperature=1.0) == first
    assert not [row for row in computed(temperature=0.0, crop=8) if row in first]


def test_the_base_answers_at_the_cost_of_the_guided_method(rows):
    for kind in ("body", "own"):
        (guided,), (base,) = (select(rows, kind=kind, method=method) for method in ("conwithindisc", "base"))
        assert base["at_cost_of"] == "conwithindisc with 2 calls"
        assert base["calls"] > guided["calls"]
        assert base["flop_nfe"] == pytest.approx(guided["flop_nfe"], abs=1.5 * 2)  # rounded calls of two answers
        assert 0 < guided["ranking_flop_nfe"] < guided["flop_nfe"]


def test_the_report_has_a_table_for_each_kind_and_unpicked_answers(results):
    section = (results / "report.md").read_text().split("## Answers to prompts")[1]
    assert "base, infilling, at the cost of conwithindisc with 2 calls" in section
    assert section.count("| real answers |") == 2
    assert section.count("# >>> the answer") == 4


def test_completions_need_pairs(corpus):
    words = ["reproduce", "completions", "--data", str(corpus.directory)]
    assert "completions needs --pairs" in str(CliRunner().invoke(cli.app, words).exception)
