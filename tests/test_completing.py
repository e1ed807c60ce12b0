"""Answers at a place in a file: column, indentation and the text around are right, and likely ones are first."""

import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from crocodil import cli
from crocodil.metrics import negative_elbo
from crocodil.pipeline import Given
from crocodil.pipeline.canvases import layout
from crocodil.pipeline.completing import answer_lengths
from crocodil.pipeline.ranking import Scored, bound
from crocodil.seeding import Streams
from crocodil.text.positions import indentation_after, parse_place, place_in

FILE = 'def mean(values):\n    """Return the mean."""\n\ndef q1_alpha_0(q1_delta):\n    return total\n'


@pytest.mark.parametrize(
    ("above", "indentation"),
    [
        ("", ""),
        ("x = 1\n", ""),
        ("def f(x):\n", "    "),
        ("def f(x):  # a comment\n\n", "    "),
        ("if x:\n  y = 1\n  if z:\n", "    "),  # the file's own step
        ("class A:\n\tdef f(self):\n", "\t\t"),
        ('def f():\n    """Return."""\n', "    "),
        ('def f():\n    """Return\n    it."""\n', "    "),
        ("def f():\n    for x in y:\n        print(x)\n", "        "),
        ("def f():\n    for x in y:\n        return x\n", "    "),
        ("def f():\n    return x\n", ""),
        ("def f():\n    returned = x\n", "    "),
        ("x = {\n    'a': 1,\n", "    "),  # an open bracket
        ("x = f(a,\n      b)\n", ""),  # a closed one
        ("def f():\n    # Read the file\n", "    "),
        ("x = {'a': 1}[\n    'a'\n]\n", ""),
        ("@cached\n", ""),
        ("Dear reader, it's\n  a letter:\n", "  "),  # not Python
        ("def a():\n        return 1\n    x = 2\n\nclass B:\n    def g(self):\n        z = 1\n", "        "),
    ],
)
def test_a_new_line_has_the_indentation_that_python_expects(above, indentation):
    assert indentation_after(above) == indentation


def test_a_place_is_a_new_line_a_blank_line_or_a_column():
    assert place_in(FILE, 2)[:2] == (FILE[:44] + "\n    ", FILE[44:])
    blank = place_in(FILE, 3)
    assert blank == (FILE[:45] + "    ", FILE[45:], True)
    assert place_in(FILE, 4, 5)[:2] == (FILE[:50], FILE[50:])
    assert place_in(FILE, 5, 5).at_column
    assert not place_in(FILE, 5, 6).at_column
    assert [parse_place(text) for text in ("3", "3:14")] == [(3, None), (3, 14)]
    for text in ("0", "3:", "x", "-1", "3:0"):
        with pytest.raises(ValueError, match="not a place in a file"):
            parse_place(text)
    for line, column in ((7, None), (2, 30)):
        with pytest.raises(ValueError, match="there is no"):
            place_in(FILE, line, column)


def test_a_suffix_does_not_force_a_full_canvas(trained_pipe):
    pipe, given = trained_pipe, Given(prefix="def f():\n", suffix="\nx = 1\n", tokens=5, at_column=True)
    parts = layout(given, pipe.tokenizer, length=64)
    assert parts.num_free == 5
    assert set(parts.rest) == {pipe.tokenizer.special.eos}
    assert set(layout(replace(given, ends=False), pipe.tokenizer, length=64).rest) == {pipe.mask_id}
    with pytest.raises(ValueError, match=r"the given text takes .* to fill"):
        layout(replace(given, tokens=64), pipe.tokenizer, length=64)


@pytest.mark.parametrize("method", ["base", "conwithindisc"])
def test_answers_start_at_their_column_and_keep_the_text_around_them(trained_pipe, method):
    place = place_in(FILE, 2)
    answers = trained_pipe.complete(
        place.prefix, place.suffix, at_column=True, count=5, method=method, calls=2, bound_draws=2
    )
    assert place.prefix.endswith(answers.prompt)
    assert place.suffix == answers.suffix
    assert [answer.nats for answer in answers] == sorted(answer.nats for answer in answers)
    assert len({len(answer.text) for answer in answers}) > 2  # several lengths
    for answer in answers:
        assert answer.text
        assert not answer.text[:1].isspace()


def test_a_prompt_that_is_too_long_is_seen_in_part_and_the_text_may_go_on(trained_pipe):
    answers = trained_pipe.complete(FILE * 9, FILE * 9, count=2, calls=2, bound_draws=1, tokens=8)
    assert (FILE * 9).endswith(answers.prompt)
    assert (FILE * 9).startswith(answers.suffix)
    assert 0 < len(answers.suffix) < len(FILE)
    (answer,) = trained_pipe.complete(FILE, count=1, calls=2, bound_draws=1, tokens=3)
    assert len(answer.text) < 64


@pytest.fixture(scope="module")
def candidates(trained_pipe):
    """A model, canvases with three answers of different lengths, and where these stand."""
    pipe, prefix = trained_pipe, "def q1_alpha_0(q1_delta, scale=0):\n    "
    texts = ["total = math.sqrt(q1_delta)", "]]]]", "zzzzzzzzzz 77777 ((((( @@@@@"]
    suffix = "\n    return total\n"
    rows, scored = [], []
    for text in texts:
        ids = pipe.tokenizer.encode(text)
        given = Given(prefix=prefix, suffix=suffix, tokens=len(ids), at_column=True)
        parts = layout(given, pipe.tokenizer, length=64)
        rows.append([*parts.before, *ids, *parts.after, *parts.rest])
        scored.append(Scored(len(parts.before), parts.end - len(parts.after), parts.end))
    return pipe, torch.tensor(rows), scored


def test_the_bound_prefers_what_the_model_has_learned_whatever_the_lengths(candidates):
    assert bound(*candidates, seed=0, num_draws=16).argmin() == 0


def test_the_cheap_bound_has_the_mean_of_the_clear_one_and_sharper_differences(candidates):
    pipe, tokens, scored = candidates
    length, times = max(one.end for one in scored) + 1, 16
    given = torch.arange(length) < torch.tensor([[one.start] for one in scored])
    own = negative_elbo(  # every answer has its own draws
        lambda noisy, hidden: pipe.base(noisy, rows=hidden),
        tokens[:, :length].repeat(times, 1),
        mask_id=pipe.mask_id,
        given=given.repeat(times, 1),
        num_draws=4,
        streams=Streams.of("clear", samples=range(times * len(tokens))),
    ).view(times, -1)
    shared = torch.stack([bound(pipe, tokens, scored, seed=seed, num_draws=4) for seed in range(times)])
    error = ((own.var(dim=0) + shared.var(dim=0)) / times).sqrt()
    assert ((own.mean(dim=0) - shared.mean(dim=0)).abs() < 3 * error).all()
    assert (shared[:, 0] - shared[:, 1]).std() < (own[:, 0] - own[:, 1]).std()


def test_suffix_tokens_are_hidden_together_in_answers_of_all_lengths(candidates):
    pipe, tokens, scored = candidates
    seen = []
    hooked = pipe.base.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0] == pipe.mask_id))
    bound(pipe, tokens, scored, seed=0, num_draws=4)
    hooked.remove()
    (hidden,) = seen  # one call for all draws of all answers
    assert hidden.shape == (12, max(one.end for one in scored) + 1)
    suffixes = [row[scored[n % 3].suffix : scored[n % 3].end] for n, row in enumerate(hidden)]
    differences = sum(int((one ^ other).sum()) for one, other in zip(suffixes[0::3], suffixes[1::3], strict=True))
    assert differences <= 4  # of 4 maskings; numbers of hidden tokens differ with the lengths


def test_a_single_answer_needs_no_bound_and_ranking_says_what_it_took(trained_pipe):
    answers = trained_pipe.complete(FILE, count=1, calls=2, bound_draws=0, tokens=3)
    assert math.isnan(answers[0].nats)
    assert answers.ranking.calls == 0
    ranked = trained_pipe.complete(FILE[:30], count=2, calls=2, bound_draws=2, tokens=3)
    assert (ranked.ranking.calls, ranked.ranking.length) == (2, trained_pipe_length(trained_pipe, FILE[:30]) + 4)
    assert ranked.ranking.seconds > 0
    with pytest.raises(ValueError, match="several are ranked with at least one call"):
        trained_pipe.complete(FILE, count=2, bound_draws=0)


def trained_pipe_length(pipe, text):
    """Return the number of tokens of a prompt with its BOS, or without its last one, which is healed."""
    return len(layout(Given(prefix=text, tokens=3), pipe.tokenizer, length=64).before)


def test_lengths_are_spread_and_given_ones_are_kept(trained_pipe):
    given = Given(prefix="x = 1\n", suffix="\ny = 2\n")
    lengths = answer_lengths(trained_pipe, given, 64, 5, None)
    assert lengths == sorted(set(lengths))
    assert (min(lengths), max(lengths)) == (5, 14)
    assert answer_lengths(trained_pipe, given, 64, 2, 7) == [7, 7]
    assert answer_lengths(trained_pipe, Given(prefix="x"), 64, 2, None) == [None, None]


def test_complete_and_generate_print_answers_with_their_bound(model_folder, tmp_path):
    file = tmp_path / "m.py"
    file.write_text(FILE)
    common = ["--model", model_folder, "--device", "cpu", "--count", 2, "--calls", 2, "--format", "jsonl"]
    for words in (
        ["complete", file, "--at", "2"],
        ["complete", "-", "--at", "2"],
        ["generate", "--prompt", "def f(x):"],
    ):
        result = CliRunner().invoke(cli.app, [str(word) for word in [*words, *common]], input=FILE)
        assert result.exit_code == 0, result.output
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert [row["nats"] for row in rows] == sorted(row["nats"] for row in rows)
        assert all(row["text"].startswith("    ") for row in rows if words[0] == "complete")


@pytest.fixture(scope="module")
def model_folder(trained, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "model"
    options = ["--data", corpus.directory, "--prior-steps", 2, "--refresh-steps", 2]
    result = CliRunner().invoke(cli.app, [str(word) for word in ["export", trained, "--out", out, *options]])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def trained_pipe(model_folder):
    from crocodil.pipeline import Crocodil

    return Crocodil.from_pretrained(model_folder, device="cpu")
