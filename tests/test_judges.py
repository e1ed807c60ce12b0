import importlib.util
import math
import os
import shutil
from dataclasses import replace
from statistics import stdev

import pytest
import tiny
import torch
from tiny_judges import PROGRAMS, START, save_encoder, save_language_model
from typer.testing import CliRunner

from crocodil import metrics
from crocodil.cli import app
from crocodil.judges import (
    DEFAULT_JUDGE,
    Cached,
    LanguageModel,
    Sampling,
    TextEncoder,
    TextScore,
    bits_per_byte,
    cut_alike,
    gen_ppl,
    judge_mauve,
    judge_samples,
    mauve_ceiling,
    perplexity,
    with_spread,
)
from crocodil.judges.folders import install
from crocodil.judges.language_model import windows_of
from crocodil.text.tokenizer import Tokenizer

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_language_model(tmp_path_factory.mktemp("tiny-judge"))


@pytest.fixture(scope="module")
def judge(folder):
    return LanguageModel.load(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return TextEncoder.load(save_encoder(tmp_path_factory.mktemp("tiny-encoder")))


# ---------------------------------------------------------------- likelihood


def by_hand(judge, tokens):
    """The nats of each token after the first, one pass over all."""
    logits = judge.network(torch.tensor([tokens])).logits[0].detach().double()
    return -logits.log_softmax(dim=1)[range(len(tokens) - 1), tokens[1:]]


def test_a_score_is_the_sum_of_log_probabilities_from_the_start_token_on(judge):
    text = PROGRAMS[7] + "# größer\n"
    (score,) = judge.scores([text])
    (tokens,) = judge.tokens([text])
    assert score.nats == pytest.approx(by_hand(judge, [0, *tokens]).sum().item(), rel=1e-5)
    assert (score.num_tokens, score.num_bytes) == (len(tokens), len(text.encode()))
    assert score.num_bytes > len(text)


@pytest.mark.parametrize("batch_size", [1, 3, 40])
def test_neither_the_batch_nor_its_order_changes_a_judgement(judge, batch_size):
    texts = [*PROGRAMS[:5], "x", PROGRAMS[0] * 9, ""]
    alone = [judge.scores([text])[0] for text in texts]
    together = judge.scores(texts, batch_size=batch_size)
    assert [score.nats for score in together] == pytest.approx([score.nats for score in alone], rel=1e-5)
    assert [score[1:] for score in together] == [score[1:] for score in alone]
    features = torch.cat([judge.features([text]) for text in texts])
    assert torch.allclose(judge.features(texts, batch_size=batch_size), features, atol=1e-4)


@pytest.mark.parametrize("context", [2, 5, 16, 17])
@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 24, 25, 100])
def test_windows_score_every_token_once_and_with_half_a_context_before_it(length, context):
    tokens = list(range(length))
    scored, windows = [], list(windows_of(3, tokens, context))
    for window in windows:
        assert window.text == 3
        assert len(window.tokens) <= context
        assert window.num_scored < len(window.tokens)
        assert window is windows[0] or len(window.tokens) - window.num_scored >= context // 2
        scored += window.tokens[-window.num_scored :]
    assert scored == tokens[1:]
    assert len(windows) == (length > 1) or length > context


def test_a_long_text_is_read_in_windows_that_agree_with_the_whole_where_it_fits(judge):
    text = "".join(PROGRAMS[:4])
    (tokens,) = judge.tokens([text])
    assert 32 < len(tokens) < judge.context
    (whole,) = judge.scores([text])
    (fits,) = replace(judge, context=len(tokens) + 1).scores([text])
    (cut,) = replace(judge, context=32).scores([text])
    assert fits.nats == pytest.approx(whole.nats, rel=1e-5)
    assert cut.nats != pytest.approx(whole.nats, rel=1e-3)
    nats = sum(
        by_hand(judge, window.tokens)[-window.num_scored :].sum().item()
        for window in windows_of(0, [0, *tokens], 32)
    )
    assert cut.nats == pytest.approx(nats, rel=1e-5)
    assert cut[1:] == whole[1:]


def test_a_special_token_written_out_in_a_text_is_plain_text(judge):
    (tokens,) = judge.tokens([f"a{START}b"])
    assert 0 not in tokens
    assert judge.tokenizer.decode(tokens) == f"a{START}b"


def test_features_are_the_last_state_of_the_last_token_and_see_the_order_of_lines(judge):
    lines = PROGRAMS[3].splitlines(keepends=True)
    (tokens,) = judge.tokens([PROGRAMS[3].rstrip()])
    state = judge.network.model(torch.tensor([[0, *tokens]])).last_hidden_state[0, -1]
    features = judge.features([PROGRAMS[3], lines[1] + lines[0] + lines[2]])
    assert torch.allclose(features[0], state, atol=1e-4)
    assert torch.cosine_similarity(*features[:, None]).item() < 0.999
    long = replace(judge, context=16).features([PROGRAMS[3]])
    assert torch.allclose(
        long[0], judge.network.model(torch.tensor([tokens[-16:]])).last_hidden_state[0, -1], atol=1e-4
    )


def test_pooled_features_are_the_mean_over_the_tokens_of_a_text(judge):
    text = PROGRAMS[3].rstrip()
    (tokens,) = judge.tokens([text])
    states = judge.network.model(torch.tensor([[0, *tokens]])).last_hidden_state[0]
    both = judge.both_features([text, "", PROGRAMS[5]])
    assert torch.allclose(both.pooled[0], states[1:].mean(dim=0), atol=1e-4)
    assert torch.equal(both.last[1], both.pooled[1])  # of an empty text, the start token
    assert torch.equal(both.last, judge.features([text, "", PROGRAMS[5]]))
    (short,) = replace(judge, context=16).both_features([text]).pooled
    assert torch.allclose(
        short, judge.network.model(torch.tensor([tokens[-16:]])).last_hidden_state[0].mean(dim=0), atol=1e-4
    )


@pytest.mark.parametrize("end", ["\n", "\n\n", "  \n", "\r\n"])
def test_how_a_text_ends_does_not_change_its_features(judge, tmp_path, end):
    plain = judge.both_features([text.rstrip() for text in PROGRAMS[:5]])
    for reader in (judge, Cached(judge, tmp_path)):
        ended = reader.both_features([text.rstrip() + end for text in PROGRAMS[:5]])
        assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(plain, ended, strict=True))


@needs_faiss
def test_near_perfect_copies_with_and_without_a_final_line_break_score_alike(judge):
    """Without one rule for both sides, MAUVE compared how texts end: 0.01 to 0.06 for near-perfect copies."""
    real = judge.both_features([text.rstrip() + "\n" for text in PROGRAMS])
    copies = [text.rstrip().replace("y + ", "y - ") if n % 10 == 0 else text for n, text in enumerate(PROGRAMS)]
    for kind in ("last", "pooled"):
        with_break, without = (
            judge_mauve(
                getattr(real, kind), getattr(judge.both_features(some), kind), seeds=range(2), num_buckets=4
            )
            for some in ([text.rstrip() + "\n" for text in copies], [text.rstrip() for text in copies])
        )
        assert with_break.mean == pytest.approx(without.mean, abs=1e-3)
        assert without.mean > 0.9


def test_texts_are_cut_to_what_a_canvas_holds(corpus):
    words = Tokenizer.load(corpus.directory / "tokenizer.json")
    long, short = "".join(PROGRAMS[:9]), "x = 1\n"
    cut, kept = cut_alike([long, short], words, length=16)
    assert kept == short
    assert long.startswith(cut)
    assert len(words.encode(cut)) <= 15
    assert cut_alike([cut], words, length=16) == [cut]


def test_perplexity_and_bits_per_byte_are_those_of_the_totals():
    scores = [TextScore(10.0, 4, 16), TextScore(2.0, 8, 8), TextScore(0.0, 0, 0)]
    assert perplexity(scores) == pytest.approx(math.e)
    assert bits_per_byte(scores) == pytest.approx(0.5 / math.log(2))
    assert gen_ppl(scores * 10).mean == perplexity(scores * 10) == pytest.approx(math.e)


def test_the_spread_of_gen_ppl_is_the_standard_error_of_four_parts():
    scores = [TextScore(math.log(ppl), 1, 1) for ppl in (1.0, 2.0, 3.0, 4.0)]
    assert gen_ppl([*scores, TextScore(0.0, 0, 0)]).spread == pytest.approx(stdev([1, 2, 3, 4]) / 2)
    assert math.isnan(gen_ppl(scores[:1]).spread)


def test_the_spread_is_that_of_drawing_texts_again():
    scores = [TextScore(float(n % 2), 1, 1) for n in range(400)]
    found = with_spread(bits_per_byte, scores)
    assert found.mean == bits_per_byte(scores)
    assert found.spread == pytest.approx(0.5 / math.log(2) / math.sqrt(400), rel=0.2)
    assert found == with_spread(bits_per_byte, scores)
    assert with_spread(perplexity, [TextScore(1.0, 2, 3)] * 5).spread == 0


# ---------------------------------------------------------------- MAUVE


def clouds(count, shift):
    return tiny.streams(count, "a").normal(16), tiny.streams(count, "b").normal(16) + shift


@needs_faiss
def test_mauve_is_the_mean_over_seeds_where_all_texts_are_taken():
    real, fake = clouds(100, 0.3)
    values = [metrics.mauve(real, fake, seed=seed) for seed in range(3)]
    found = judge_mauve(real, fake, seeds=range(3))
    assert found == metrics.Measured.over(values)


@needs_faiss
def test_mauve_is_near_its_ceiling_for_texts_alike_and_far_below_for_others():
    real, alike = clouds(300, 0.0)
    ceiling = mauve_ceiling(real, count=100, seeds=range(3))
    near, far = (judge_mauve(real, fake[:100], seeds=range(3)) for fake in (alike, alike + 1))
    assert ceiling.mean == pytest.approx(near.mean, abs=0.1)
    assert far.mean < 0.1 < 0.8 < near.mean
    assert near.spread > 0  # other references, other clusters


@needs_faiss
def test_mauve_draws_as_many_references_as_there_are_samples():
    real, fake = clouds(200, 0.3)
    values = [judge_mauve(real, fake[:60], seeds=range(2)), judge_mauve(real[:100], fake[:60], seeds=range(2))]
    assert values[0] == judge_mauve(real, fake[:60], seeds=range(2))
    assert values[0] != values[1]


# ---------------------------------------------------------------- BERTScore


def test_an_encoder_reads_whole_texts_whatever_its_tokenizers_file_cuts(encoder):
    texts = encoder.embed([PROGRAMS[0], "x", PROGRAMS[0] * 9, ""])
    lengths = texts.present.sum(dim=1).tolist()
    assert lengths[0] > 8  # where the file cuts
    assert lengths[1:] == [3, 64, 2]  # CLS and SEP stay; 64 positions in all
    assert texts.counted.sum(dim=1).tolist() == [length - 2 for length in lengths]
    alone = encoder.embed([PROGRAMS[0]])
    assert torch.allclose(texts.vectors[0, : lengths[0]], alone.vectors[0], atol=1e-4)


def test_bert_scores_stand_in_the_order_of_their_texts(encoder):
    references = [*PROGRAMS[:5], PROGRAMS[0] * 3]
    found = [PROGRAMS[0], *PROGRAMS[6:10], "completely different"]
    score = encoder.bert_score(references, found, batch_size=2)
    assert score.f1[0].item() == pytest.approx(1, abs=1e-5)
    for pair in range(6):
        alone = encoder.bert_score(references[pair : pair + 1], found[pair : pair + 1])
        assert [values[pair].item() for values in score] == pytest.approx([v.item() for v in alone], abs=1e-4)


def test_a_layer_can_be_chosen(encoder, tmp_path):
    save_encoder(tmp_path)
    first = TextEncoder.load(tmp_path, layer=0)
    assert not torch.allclose(first.embed(["x"]).vectors, encoder.embed(["x"]).vectors)
    with pytest.raises(ValueError, match=r"has layers 0 \(its embeddings\) to 2, not 3"):
        TextEncoder.load(tmp_path, layer=3)


# ---------------------------------------------------------------- the cache


def test_a_judgement_is_made_once(folder, tmp_path):
    judge, calls = LanguageModel.load(folder), []
    judge.network.model.register_forward_hook(lambda *_: calls.append(1))
    texts = [*PROGRAMS[:6], PROGRAMS[0]]
    cached = Cached(judge, tmp_path)
    scores, features = cached.scores(texts), cached.features(texts)
    num_calls = len(calls)
    assert num_calls == 2
    again = Cached(judge, tmp_path)
    assert again.scores(texts[::-1]) == scores[::-1]
    assert torch.equal(again.features(texts), features)
    assert len(calls) == num_calls
    assert again.scores([*texts, "new"])[:-1] == scores
    assert len(calls) == num_calls + 1
    assert [score.nats for score in scores] == pytest.approx(
        [score.nats for score in judge.scores(texts)], rel=1e-5
    )
    assert torch.allclose(features, judge.features(texts), atol=1e-4)


def test_judges_of_the_same_name_do_not_mix(judge, tmp_path):
    (tmp_path / "other" / judge.name).mkdir(parents=True)
    other = LanguageModel.load(save_language_model(tmp_path / "other" / judge.name, seed=1))
    assert other.name == judge.name
    cache = tmp_path / "cache"
    assert Cached(judge, cache).scores(PROGRAMS[:2]) != Cached(other, cache).scores(PROGRAMS[:2])
    assert replace(judge, context=9).fingerprint != judge.fingerprint == replace(judge).fingerprint


# ---------------------------------------------------------------- complete numbers


@needs_faiss
def test_every_number_carries_what_it_depends_on(judge, tmp_path):
    sampling = Sampling(temperature=1.0, precision="float32", seed=3, commit="abc")
    verdicts = judge_samples(PROGRAMS[:12], PROGRAMS[12:], Cached(judge, tmp_path), sampling, seeds=range(2))
    rows = {verdict.metric: verdict.row() for verdict in verdicts}
    assert list(rows) == [
        "gen_ppl", "bits_per_byte", "token_entropy", "mauve", "mauve_pooled", "mauve_ceiling",
        "mauve_pooled_ceiling",
    ]  # fmt: skip
    for row in rows.values():
        assert {*row} == {
            "metric", "mean", "spread", "judge", "num_samples", "temperature", "precision", "seed", "commit",
        }  # fmt: skip
        assert row["judge"] == judge.name
        assert row["num_samples"] == 12
        assert math.isfinite(row["mean"])
        assert math.isfinite(row["spread"])
    assert rows["gen_ppl"]["mean"] == pytest.approx(gen_ppl(judge.scores(PROGRAMS[:12])).mean, rel=1e-5)


# ---------------------------------------------------------------- what can be wrong


def test_bad_input_gets_a_clear_line(judge, encoder, tmp_path):
    features = torch.zeros(30, 4)
    broken = features.clone()
    broken[[4, 7]] = math.nan
    for call, line in [
        (lambda: judge.scores([]), "no texts"),
        (lambda: judge.features([]), "no texts"),
        (lambda: Cached(judge, tmp_path).scores([]), "no texts"),
        (lambda: encoder.embed([]), "no texts"),
        (lambda: encoder.bert_score(["a"], []), "0 texts, but 1 references"),
        (lambda: gen_ppl([]), "no texts were given"),
        (lambda: bits_per_byte(judge.scores(["", ""])), "all texts are empty"),
        (lambda: with_spread(perplexity, judge.scores(["a"])), "at least two texts"),
        (
            lambda: judge_mauve(features, broken),
            "2 of the fake features are not finite, the first is that of text 4",
        ),
        (lambda: judge_mauve(features, features[:5], num_buckets=6), "6 clusters.*there are 5; give more samples"),
        (lambda: judge_mauve(features[:0], features), "there are 0"),
        (lambda: judge_mauve(features, torch.zeros(30, 5)), "4 and 5 wide"),
        (lambda: mauve_ceiling(features, count=16), "takes 32 real ones: there are 30"),
    ]:
        with pytest.raises(ValueError, match=line):
            call()


def test_a_judge_that_is_not_here_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CROCODIL_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=f"`crocodil judges install {DEFAULT_JUDGE}`"):
        LanguageModel.load()
    with pytest.raises(ValueError, match="`crocodil judges install minilm"):
        TextEncoder.load()
    with pytest.raises(ValueError, match="it is no folder"):
        LanguageModel.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no judge 'gpt2-large' on this machine.*crocodil judges install"):
        LanguageModel.load("gpt2-large")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_judge_whose_numbers_are_not_finite_is_refused(tmp_path, value):
    judge = LanguageModel.load(save_language_model(tmp_path / "judge"))
    judge.network.model.layers[0].mlp.down_proj.weight.data[0, 0] = value
    for judged in (judge.scores, judge.both_features):
        with pytest.raises(
            FloatingPointError, match="the judge judge says is not finite: its weights are damaged"
        ):
            judged(["def f():\n    return 1\n"])


def test_a_folder_that_holds_only_a_pickle_is_refused_and_the_pickle_not_loaded(tmp_path):
    folder = save_language_model(tmp_path / "judge")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.ones(2)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"^[^\n]*safetensors[^\n]*$"):
        LanguageModel.load(folder)


def test_a_folder_without_weights_or_with_too_few_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="no judge"):
        LanguageModel.load(tmp_path)
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_text((folder / file).read_text())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no weights for model\.norm\.weight"):
        LanguageModel.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b'{"model_type": "llama", "num_attention_heads": 2.5}'),
        ("config.json", b'{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}'),
        ("model.safetensors", b"\xff" * 64),
        ("tokenizer.json", b"[]"),
    ],
)
def test_a_damaged_judge_is_one_line(folder, tmp_path, file, content, capfd):
    copy = shutil.copytree(folder, tmp_path / "judge")
    (copy / file).write_bytes(content)
    with pytest.raises(ValueError, match=r"no judge|is damaged, or of another kind"):
        LanguageModel.load(copy)
    assert capfd.readouterr().err == ""


def test_loading_is_silent(folder, capfd):
    LanguageModel.load(folder)
    assert capfd.readouterr() == ("", "")


def test_the_command_lists_judges_and_refuses_unknown_ones(monkeypatch, tmp_path):
    monkeypatch.setenv("CROCODIL_CACHE", str(tmp_path))
    listed = CliRunner().invoke(app, ["judges", "list"])
    assert listed.exit_code == 0
    assert DEFAULT_JUDGE in listed.output
    refused = CliRunner().invoke(app, ["judges", "install", "nonsense"])
    assert refused.exit_code == 2
    with pytest.raises(ValueError, match="no judge 'nonsense' in the registry: take smollm2-135m or minilm-l6-v2"):
        install(["nonsense"])
    assert os.listdir(tmp_path) == []
