import importlib.util
import json
import math
import os
import shutil
from dataclasses import replace
from statistics import stdev

import pytest
import torch
from tiny_judges import PROGRAMS, START, save_encoder, save_language_model
from typer.testing import CliRunner

from crocodil.cli import app
from crocodil.judges import (
    DEFAULT_JUDGE,
    Embedder,
    Evaluator,
    Judge,
    JudgeLayer,
    LanguageModel,
    TextEncoder,
    TextScore,
    bert_scores,
    bits_per_byte,
    check_unrelated,
    cut_to_length,
    gen_ppl,
    load_embedder,
    perplexity,
)
from crocodil.judges.folders import install
from crocodil.judges.known_inputs import RANKED, REPEATED, Judged, check_order, judge_known_inputs, known_inputs
from crocodil.judges.language_model import windows_of
from crocodil.metrics import mauve_by_seed
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
    """Return the nats of each token after the first, from one forward pass."""
    logits = judge.network(torch.tensor([tokens])).logits[0].detach().double()
    return -logits.log_softmax(dim=1)[range(len(tokens) - 1), tokens[1:]]


def test_a_score_is_the_sum_of_negative_log_probabilities_after_the_start_token(judge):
    text = PROGRAMS[7] + "# größer\n"
    (score,) = judge.scores([text])
    (tokens,) = judge.tokens([text])
    assert score.nats == pytest.approx(by_hand(judge, [0, *tokens]).sum().item(), rel=1e-5)
    assert (score.num_tokens, score.num_bytes) == (len(tokens), len(text.encode()))
    assert score.num_bytes > len(text)


@pytest.mark.parametrize("batch_size", [1, 3, 40])
def test_scores_and_features_do_not_depend_on_the_batch(judge, batch_size):
    texts = [*PROGRAMS[:5], "x", PROGRAMS[0] * 9, ""]
    alone = [judge.scores([text])[0] for text in texts]
    together = judge.scores(texts, batch_size=batch_size)
    assert [score.nats for score in together] == pytest.approx([score.nats for score in alone], rel=1e-5)
    assert [score[1:] for score in together] == [score[1:] for score in alone]
    features = torch.cat([judge.features([text]).last for text in texts])
    assert torch.allclose(judge.features(texts, batch_size=batch_size).last, features, atol=1e-4)


@pytest.mark.parametrize("context", [2, 5, 16, 17])
@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 24, 25, 100])
def test_windows_score_each_token_once_with_at_least_half_a_context_before_it(length, context):
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


def test_a_text_longer_than_the_context_is_scored_in_windows(judge):
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


def test_a_special_token_in_a_text_is_read_as_plain_text(judge):
    (tokens,) = judge.tokens([f"a{START}b"])
    assert 0 not in tokens
    assert judge.tokenizer.decode(tokens) == f"a{START}b"


def test_features_of_the_last_token_depend_on_the_order_of_lines(judge):
    lines = PROGRAMS[3].splitlines(keepends=True)
    (tokens,) = judge.tokens([PROGRAMS[3].rstrip()])
    state = judge.network.model(torch.tensor([[0, *tokens]])).last_hidden_state[0, -1]
    features = judge.features([PROGRAMS[3], lines[1] + lines[0] + lines[2]]).last
    assert torch.allclose(features[0], state, atol=1e-4)
    assert torch.cosine_similarity(*features[:, None]).item() < 0.999
    long = replace(judge, context=16).features([PROGRAMS[3]]).last
    assert torch.allclose(
        long[0], judge.network.model(torch.tensor([tokens[-16:]])).last_hidden_state[0, -1], atol=1e-4
    )


def test_pooled_features_are_the_mean_over_the_tokens_of_a_text(judge):
    text = PROGRAMS[3].rstrip()
    (tokens,) = judge.tokens([text])
    states = judge.network.model(torch.tensor([[0, *tokens]])).last_hidden_state[0]
    features = judge.features([text, "", PROGRAMS[5]])
    assert torch.allclose(features.pooled[0], states[1:].mean(dim=0), atol=1e-4)
    assert torch.equal(features.last[1], features.pooled[1])  # an empty text is the start token
    (short,) = replace(judge, context=16).features([text]).pooled
    assert torch.allclose(
        short, judge.network.model(torch.tensor([tokens[-16:]])).last_hidden_state[0].mean(dim=0), atol=1e-4
    )


@pytest.mark.parametrize("end", ["\n", "\n\n", "  \n", "\r\n"])
def test_white_space_at_the_end_of_a_text_does_not_change_its_features(judge, end):
    stripped = judge.features([text.rstrip() for text in PROGRAMS[:5]])
    ended = judge.features([text.rstrip() + end for text in PROGRAMS[:5]])
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(stripped, ended, strict=True))


def test_texts_are_cut_to_what_fits_on_a_canvas(corpus):
    words = Tokenizer.load(corpus.directory / "tokenizer.json")
    long, short = "".join(PROGRAMS[:9]), "x = 1\n"
    cut, kept = cut_to_length([long, short], words, length=16)
    assert kept == short
    assert long.startswith(cut)
    assert len(words.encode(cut)) <= 15
    assert cut_to_length([cut], words, length=16) == [cut]


def test_perplexity_and_bits_per_byte_are_those_of_the_totals():
    scores = [TextScore(10.0, 4, 16), TextScore(2.0, 8, 8), TextScore(0.0, 0, 0)]
    assert perplexity(scores) == pytest.approx(math.e)
    assert bits_per_byte(scores) == pytest.approx(0.5 / math.log(2))
    assert gen_ppl(scores * 10).mean == perplexity(scores * 10) == pytest.approx(math.e)


def test_the_spread_of_gen_ppl_is_the_standard_error_of_four_parts():
    scores = [TextScore(math.log(ppl), 1, 1) for ppl in (1.0, 2.0, 3.0, 4.0)]
    assert gen_ppl([*scores, TextScore(0.0, 0, 0)]).spread == pytest.approx(stdev([1, 2, 3, 4]) / 2)
    assert math.isnan(gen_ppl(scores[:1]).spread)


# ---------------------------------------------------------------- the evaluator


@pytest.fixture(scope="module")
def evaluator(judge, encoder, corpus):
    words = Tokenizer.load(corpus.directory / "tokenizer.json")
    return Evaluator(judge=judge, embedder=encoder, tokenizer=words, mauve_seeds=range(2), mauve_buckets=4)


def test_the_classes_of_judges_are_what_the_evaluator_expects(judge, encoder):
    assert isinstance(judge, Judge)
    assert isinstance(encoder, Embedder)
    assert isinstance(JudgeLayer.of(judge), Embedder)


@needs_faiss
def test_every_number_stands_in_one_row(evaluator, judge):
    row = evaluator.evaluate(PROGRAMS[:12], evaluator.reference(PROGRAMS[12:]))
    assert list(row) == [
        "mauve", "mauve_spread", "mauve_pooled", "mauve_pooled_spread", "gen_ppl", "gen_ppl_spread",
        "bits_per_byte", "mean_tokens", "entropy", "distinct_2", "repetition", "parse_share", "empty_share",
    ]  # fmt: skip
    assert all(math.isfinite(value) for value in row.values())
    scores = judge.scores(PROGRAMS[:12])
    assert (row["gen_ppl"], row["gen_ppl_spread"]) == gen_ppl(scores)
    assert row["bits_per_byte"] == bits_per_byte(scores)


@needs_faiss
def test_mauve_is_the_mean_over_seeds_by_both_kinds_of_features(evaluator, judge):
    real, fake = judge.features(PROGRAMS[:20]), judge.features(PROGRAMS[20:])
    row = evaluator.mauve_row(real, fake)
    for name, kind in {"mauve": "last", "mauve_pooled": "pooled"}.items():
        values = mauve_by_seed(getattr(real, kind), getattr(fake, kind), seeds=range(2), num_buckets=4)
        assert (row[name], row[f"{name}_spread"]) == pytest.approx((sum(values) / 2, stdev(values)))


@needs_faiss
def test_real_texts_give_the_ceiling_of_mauve_at_the_same_number_of_texts(evaluator):
    reference = evaluator.reference(PROGRAMS[:20])
    row = evaluator.evaluate_real(reference, PROGRAMS[20:])
    assert row == {**evaluator.mauve_against(reference, PROGRAMS[20:]), **evaluator.score(PROGRAMS[:20])}
    too_few = evaluator.evaluate_real(reference, PROGRAMS[20:30])
    assert too_few["mauve"] is too_few["mauve_pooled_spread"] is None
    assert too_few["gen_ppl"] == row["gen_ppl"]


@needs_faiss
def test_mauve_does_not_depend_on_final_line_breaks(evaluator):
    """Without one rule for both sides, MAUVE compares how texts end: 0.01 to 0.06 for near-perfect copies."""
    reference = evaluator.reference([text.rstrip() + "\n" for text in PROGRAMS])
    copies = [text.rstrip().replace("y + ", "y - ") if n % 10 == 0 else text for n, text in enumerate(PROGRAMS)]
    with_break = evaluator.mauve_against(reference, [text.rstrip() + "\n" for text in copies])
    without = evaluator.mauve_against(reference, [text.rstrip() for text in copies])
    for name in ("mauve", "mauve_pooled"):
        assert with_break[name] == pytest.approx(without[name], abs=1e-3)
        assert without[name] > 0.9


# ---------------------------------------------------------------- BERTScore


def test_an_encoder_ignores_the_truncation_in_its_tokenizers_file(encoder):
    texts = encoder.embed([PROGRAMS[0], "x", PROGRAMS[0] * 9, ""])
    lengths = texts.present.sum(dim=1).tolist()
    assert lengths[0] > 8  # where the file truncates
    assert lengths[1:] == [3, 64, 2]  # CLS and SEP stay; 64 positions in all
    assert texts.counted.sum(dim=1).tolist() == [length - 2 for length in lengths]
    alone = encoder.embed([PROGRAMS[0]])
    assert torch.allclose(texts.vectors[0, : lengths[0]], alone.vectors[0], atol=1e-4)


def test_bert_scores_are_in_the_order_of_the_texts(encoder, judge, evaluator, monkeypatch):
    monkeypatch.setattr("crocodil.judges.evaluator.PAIRS_PER_BATCH", 4)
    references = [*PROGRAMS[:5], PROGRAMS[0] * 3]
    texts = [PROGRAMS[0], *PROGRAMS[6:10], "completely different"]
    scores = bert_scores(encoder, references, texts)
    assert scores.f1[0].item() == pytest.approx(1, abs=1e-5)
    for pair in range(6):
        alone = bert_scores(encoder, references[pair : pair + 1], texts[pair : pair + 1])
        assert [values[pair].item() for values in scores] == pytest.approx([v.item() for v in alone], abs=1e-4)
    found = replace(evaluator, judge_layer=JudgeLayer.of(judge)).bert_score_row(references, texts)
    by_judge = bert_scores(JudgeLayer.of(judge), references, texts).f1.mean().item()
    assert found == {"bert_score": scores.f1.mean().item(), "bert_score_judge": by_judge}
    assert set(replace(evaluator, embedder=None).bert_score_row(references, texts).values()) == {None}


def test_a_layer_can_be_chosen(encoder, tmp_path):
    save_encoder(tmp_path)
    first = TextEncoder.load(tmp_path, layer=0)
    assert not torch.allclose(first.embed(["x"]).vectors, encoder.embed(["x"]).vectors)
    with pytest.raises(ValueError, match=r"has layers 0 \(its embeddings\) to 2, not 3"):
        TextEncoder.load(tmp_path, layer=3)


def test_a_layer_of_the_judge_embeds_every_token_but_the_start(judge):
    layer = JudgeLayer.of(judge)
    assert (layer.layer, layer.name) == (1, f"{judge.name}, layer 1")  # of two
    texts = layer.embed([PROGRAMS[0], "", PROGRAMS[0] * 9])
    assert texts.counted.sum(dim=1).tolist() == [len(judge.tokens([PROGRAMS[0]])[0]), 0, judge.context - 1]
    assert torch.equal(texts.present.sum(dim=1) - 1, texts.counted.sum(dim=1))
    first = JudgeLayer.of(judge, layer=0).embed([PROGRAMS[0]])
    (tokens,) = judge.tokens([PROGRAMS[0]])
    assert torch.equal(first.vectors[0], judge.network.model.embed_tokens(torch.tensor([0, *tokens])))
    assert torch.allclose(layer.embed([PROGRAMS[0]]).vectors[0], texts.vectors[0, : len(tokens) + 1], atol=1e-4)
    with pytest.raises(ValueError, match=r"has layers 0 \(its embeddings\) to 2, not 3"):
        JudgeLayer.of(judge, layer=3)
    with pytest.raises(ValueError, match="no texts"):
        layer.embed([])


def test_config_json_says_whether_an_embedder_is_causal(folder, tmp_path):
    assert isinstance(load_embedder(folder), JudgeLayer)
    assert isinstance(load_embedder(save_encoder(tmp_path)), TextEncoder)
    with pytest.raises(ValueError, match="the folder does not exist"):
        load_embedder(tmp_path / "nowhere")


# ---------------------------------------------------------------- lineage and known inputs


def test_a_judge_that_shares_weights_with_the_model_is_refused(judge, encoder, evaluator, folder, tmp_path):
    (family,) = judge.families
    assert family == f"llama-2x32-{judge.network.config.vocab_size}"
    refused = rf"^{judge.name}.* may not judge this model: the weights of both come from {family}; .*$"
    for one in (judge, JudgeLayer.of(judge)):
        with pytest.raises(ValueError, match=refused):
            check_unrelated(one, {family})
    with pytest.raises(ValueError, match=refused):
        evaluator.check_unrelated({family})
    evaluator.check_unrelated(["llama-30x576-49152"])
    with pytest.raises(ValueError, match="may not judge"):
        evaluator.check_unrelated(encoder.families)
    child = shutil.copytree(folder, tmp_path / "child")  # a folder that was made from another one names its parent
    config = json.loads((child / "config.json").read_text()) | {"crocodil_parents": ["llama-30x576-49152"]}
    (child / "config.json").write_text(json.dumps(config))
    assert LanguageModel.load(child).families == ("llama-30x576-49152",)


def test_known_inputs_keep_what_their_kind_says(judge):
    inputs = known_inputs(judge, PROGRAMS[:2])
    assert list(inputs) == [*RANKED, REPEATED]
    assert sorted(inputs["lines shuffled"][0].splitlines()) == sorted(PROGRAMS[0].splitlines())
    assert sorted(inputs["tokens shuffled"][1]) == sorted(PROGRAMS[1])
    assert len(inputs["random characters"][0]) == len(PROGRAMS[0])
    rows = judge_known_inputs(judge, PROGRAMS[:2])
    assert rows["real"].bits_per_byte == bits_per_byte(judge.scores(PROGRAMS[:2]))


def test_a_judge_that_ranks_known_inputs_otherwise_is_refused():
    rows = {kind: Judged(10.0, bits, 3.0) for bits, kind in enumerate(RANKED)} | {REPEATED: Judged(1.5, 0.1, 1.0)}
    check_order("good", rows)
    with pytest.raises(ValueError, match=r"bad is no judge of programs: .* for 'tokens shuffled'"):
        check_order("bad", rows | {"tokens shuffled": Judged(10.0, 0.5, 3.0)})
    with pytest.raises(ValueError, match="do not expose repetition"):
        check_order("bad", rows | {REPEATED: Judged(1.5, 0.1, 3.0)})


# ---------------------------------------------------------------- what can be wrong


def test_bad_input_is_refused_in_one_line(judge, encoder):
    for call, line in [
        (lambda: judge.scores([]), "no texts"),
        (lambda: judge.features([]), "no texts"),
        (lambda: encoder.embed([]), "no texts"),
        (lambda: bert_scores(encoder, ["a"], []), "there are 0 texts and 1 references"),
        (lambda: bert_scores(encoder, [], []), "no texts"),
        (lambda: gen_ppl([]), "no texts were given"),
        (lambda: bits_per_byte(judge.scores(["", ""])), "all texts are empty"),
    ]:
        with pytest.raises(ValueError, match=line):
            call()


def test_the_error_for_a_missing_judge_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CROCODIL_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=f"`crocodil judges install {DEFAULT_JUDGE}`"):
        LanguageModel.load()
    with pytest.raises(ValueError, match="`crocodil judges install minilm"):
        TextEncoder.load()
    with pytest.raises(ValueError, match="the folder does not exist"):
        LanguageModel.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no judge 'gpt2-large' on this machine.*crocodil judges install"):
        LanguageModel.load("gpt2-large")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_judge_with_non_finite_weights_is_refused(tmp_path, value):
    judge = LanguageModel.load(save_language_model(tmp_path / "judge"))
    judge.network.model.layers[0].mlp.down_proj.weight.data[0, 0] = value
    for method in (judge.scores, judge.features):
        with pytest.raises(FloatingPointError, match="the judge judge gives non-finite numbers"):
            method(["def f():\n    return 1\n"])


def test_a_folder_with_only_a_pickle_is_refused_without_loading_it(tmp_path):
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
def test_a_damaged_judge_is_refused_in_one_line(folder, tmp_path, file, content, capfd):
    copy = shutil.copytree(folder, tmp_path / "judge")
    (copy / file).write_bytes(content)
    with pytest.raises(ValueError, match=r"no judge|is damaged or of the wrong kind"):
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
    with pytest.raises(ValueError, match=r"no judge 'nonsense' in the registry: choose qwen2.5-coder-0.5b or"):
        install(["nonsense"])
    assert os.listdir(tmp_path) == []
