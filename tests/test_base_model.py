"""A base from prompts to answers, in Python and on the command line, with LLaDA's own outputs as the measure."""

import copy
import json
import shutil
import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from itertools import takewhile

import pytest
import tiny_tokenizer
import torch
from safetensors.torch import load_file
from test_samplers import FIRST_WINNERS, BreakTheFirstTie
from tiny_tokenizer import BOS, END, EOS, EOT, MASK, START, with_tokenizer
from typer.testing import CliRunner

from crocodil import Base
from crocodil.cli import app, main
from crocodil.cli.texts import read_prompt
from crocodil.pipeline.base_settings import answer_decoding
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import Cost
from crocodil.text.chat import TokenizerConfig, load_tokenizer

PROMPTS = ["one", "a longer one", "two"]


@pytest.fixture(scope="module")
def base(llada_folder):
    return Base.from_pretrained(llada_folder, device="cpu")


def run(*arguments, **options):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], env={"COLUMNS": "200"}, **options)


# ---------------------------------------------------------------- LLaDA's own answers


@pytest.mark.parametrize("case", [1, 3, 4])  # tests/test_samplers.py has them all
def test_answers_are_those_of_the_public_implementation(base, fixtures, case):
    golden = load_file(fixtures / "llada-tiny" / "golden.safetensors")
    setting = json.loads((fixtures / "llada-tiny" / "cases.json").read_text())[case]
    made = base.generate(
        golden["prompt"].tolist() if setting["prompt"] else [[], []],
        length=setting["length"],
        block_size=setting["block"],
        calls=setting["steps"],
        rule=BreakTheFirstTie(FIRST_WINNERS.get(("llada-tiny", case), ())),
        eos_last=False,
    )
    assert torch.equal(made.tokens, golden[f"generate.{case}"])
    assert made.costs == [Cost(demasker_calls=setting["steps"])] * 2
    assert made.nfe == made.flop_nfe == setting["steps"]


def test_positions_that_are_not_read_cost_nothing(base):
    prompt, options = base.prompt_tokens("a prompt"), {"length": 8, "block_size": 8, "calls": 4}
    last = base.generate([prompt], **options).tokens[0, -1].item()
    network = copy.deepcopy(base.network)  # of which this token ends a text
    network.config = replace(network.config, eos_id=last)
    made = replace(base, network=network).generate([prompt], **options, crop=0)
    assert made.cost.left_out > 0
    assert made.flop_nfe == pytest.approx(made.nfe - made.cost.left_out / (len(prompt) + 8))


def test_guidance_is_that_of_llada_with_the_prompt_masked(base):
    prompt = base.prompt_tokens("a prompt")
    canvas = torch.tensor([[*prompt, *[MASK] * 4]])
    masked = torch.full_like(canvas, MASK)
    with_prompt, without = base.network(canvas), base.network(masked)
    logits = without + (2.0 + 1) * (with_prompt - without)  # LLaDA's cfg_scale 2
    logits[..., MASK] = -torch.inf
    made = base.generate("a prompt", length=4, calls=1, guidance=3.0, eos_last=False)
    assert made.tokens.tolist() == logits[:, -4:].argmax(dim=2).tolist()
    assert made.tokens.tolist() != base.generate("a prompt", length=4, calls=1).tokens.tolist()
    assert made.cost == Cost(demasker_calls=2)
    assert made.registers is None


# ---------------------------------------------------------------- prompts


def test_an_answer_is_the_same_alone_and_among_prompts_of_other_lengths(base):
    options = {"length": 8, "calls": 1, "temperature": 1.0}
    made = base.generate(PROMPTS, **options, seed=5)
    assert list(base.stream(PROMPTS, **options, seed=5, batch_size=1)) == made.texts
    assert [len(batch.texts) for batch in base.stream_batches(PROMPTS, **options)] == [2, 1]
    twice = base.generate([PROMPTS[0]] * 2, **options, seed=5).texts
    assert twice[0] == made.texts[0] != twice[1]
    assert base.generate(PROMPTS[0], **options, seed=6).texts != made.texts[:1]


def test_every_token_has_a_call_in_blocks_of_32_unless_asked_otherwise(base):
    assert answer_decoding(Decoding(), {}, length=64) == Decoding(block_size=32, calls=64)
    assert answer_decoding(Decoding(), {"calls": 6}, length=48) == Decoding(block_size=48, calls=6)
    assert base.generate("x" * 120, threshold=0.0).tokens.shape == (1, 8)  # what the prompt leaves of 128
    assert base.generate("x", length=8, threshold=0.0).cost == Cost(demasker_calls=1)  # all tokens at once


def test_a_prompt_begins_with_bos_where_its_tokenizer_says_so_or_it_is_empty(base, llada_folder, tmp_path):
    assert base.prompt_tokens("") == [BOS]
    assert BOS not in base.prompt_tokens("text")
    folder = with_tokenizer(llada_folder, tmp_path / "bos", chat=False)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": True}))
    assert Base.from_pretrained(folder, device="cpu").prompt_tokens("text") == [BOS, *base.prompt_tokens("text")]


def test_special_tokens_of_the_config_need_no_names_in_the_tokenizer(base):
    assert base.tokenizer.id_of("<|mdm_mask|>") is None
    assert (base.mask_id, base.tokenizer.special.mask, base.tokenizer.special.eos) == (MASK, MASK, EOS)
    assert base.prompt_tokens("<|eot_id|>") != [EOT]  # text is never a special token


def test_a_vocabulary_and_merges_are_a_tokenizer_too(tmp_path):
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    names = {"4": "<|endoftext|>", "5": "<|beginoftext|>", "6": "<|im_end|>"}
    config = {
        "bos_token": "<|beginoftext|>",
        "added_tokens_decoder": {number: {"content": name, "special": True} for number, name in names.items()},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path, mask=7, eos=4, pad=4)
    assert tokenizer.encode("ab a") == [3, 2, 0]
    assert tokenizer.decode([3, 2, 0, 6, 4]) == "ab a"
    assert (tokenizer.special.bos, tokenizer.special.mask, tokenizer.id_of("<|im_end|>")) == (5, 7, 6)
    config["added_tokens_decoder"] = {"9": {"content": "<|endoftext|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"the id of <|endoftext|> does not follow those of vocab.json"):
        load_tokenizer(tmp_path, mask=7, eos=4, pad=4)


def test_an_answer_ends_at_the_first_eos_or_end_of_turn(base):
    words = base.prompt_tokens("ab")
    assert base.text_of([*words, EOT, *words]) == base.text_of([*words, EOS, *words]) == "ab"
    assert base.text_of([EOS, EOS]) == base.text_of([EOT]) == ""
    made = base.generate(3, length=16, calls=1, temperature=1.0)
    for tokens, text in zip(made.tokens.tolist(), made.texts, strict=True):
        assert text == base.tokenizer.decode(list(takewhile(lambda token: token not in (EOS, EOT), tokens)))


def test_a_caller_watches_the_answer_without_its_prompt(base):
    seen = []
    base.generate("prompt", length=8, calls=2, on_call=seen.append, batch_size=1)
    assert [(now.call, now.num_calls, now.tokens.shape, now.texts[0].count("░")) for now in seen] == [
        (0, 2, (1, 8), 4),
        (1, 2, (1, 8), 0),
    ]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (0, {}, "at least one text"),
        ([[384]], {}, "token 384, outside a vocabulary of 384"),
        ([[MASK]], {}, "contains the mask token"),
        ("x" * 100, {"length": 64}, "100 tokens and an answer of 64 are more than the 128 that this model takes"),
        ("x", {"block_size": 24}, "block_size 24 does not divide length 64"),
        ("x", {"prior_steps": 3}, "no decoding option 'prior_steps'"),
        (2, {"guidance": 2.0}, "strengthens the prompt, and there is none"),
        (1, {"chat": True}, "chat answers a prompt"),
        ([{"role": "tool", "content": "x"}], {"chat": True}, "refuses these messages: there are no tools"),
    ],
)
def test_a_mistake_is_named_at_once(base, prompts, options, message):
    with pytest.raises(ValueError, match=message):
        base.stream(prompts, **options)


# ---------------------------------------------------------------- chat


def test_a_chat_template_wraps_a_message_in_special_tokens(base):
    words = {name: base.prompt_tokens(name) for name in ("system", "user", "assistant", "be short", "hello", "\n")}

    def turn(role):
        return [START, *words[role], END, *words["\n"]]

    user = [*turn("user"), *words["hello"], EOT, *turn("assistant")]
    assert base.prompt_tokens("hello", chat=True) == [BOS, *user]
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": " hello "}]
    assert base.prompt_tokens(messages, chat=True) == [BOS, *turn("system"), *words["be short"], EOT, *user]
    assert len(base.generate(messages, chat=True, length=4, calls=1).texts) == 1


def test_templates_are_found_where_publishers_put_them(tmp_path):
    assert TokenizerConfig.read(tmp_path) == TokenizerConfig({})
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "add_bos_token": True}))
    assert TokenizerConfig.read(tmp_path) == TokenizerConfig({}, adds_bos=True, template="d")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert TokenizerConfig.read(tmp_path).template == "file"


# ---------------------------------------------------------------- the command line


def test_generate_prints_the_answers_of_a_checkpoint(base, llada_folder, tmp_path):
    options = ["--model", llada_folder, "--length", 8, "--block-size", 4, "--threshold", 0.01, "--device", "cpu"]
    expected = base.generate("hello", length=8, block_size=4, threshold=0.01)
    assert expected.texts[0].strip()
    made = run(*options, "--prompt", "hello")
    assert made.stdout == f"{expected.texts[0]}\n"
    assert "1 text in " in made.stderr
    chat = base.generate("hello", chat=True, length=8, block_size=4, threshold=0.01).texts[0]
    piped = run(*options, "--prompt-file", "-", "--chat", "--show", "--format", "jsonl", input="hello\n")
    row = json.loads(piped.stdout)
    assert (row["method"], row["text"]) == ("base", chat)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prior-steps", "3"], "--prior-steps needs registers, and"),
        (["--method", "conthendisc"], "--method conthendisc needs registers"),
        (["--prefix", "x"], "use --prompt"),
        (["--prompt", "a", "--prompt-file", "b"], "give one of them"),
        (["--chat"], "--chat answers a prompt"),
        (["--block-size", "5"], "block_size 5 does not divide length 64"),
        (["--model", "builtin", "--prompt", "x", "--prefix", "y"], "--prompt goes with none of --prefix"),
    ],
)
def test_an_option_that_does_not_fit_the_model_is_one_line(monkeypatch, capsys, llada_folder, arguments, message):
    line = failure(monkeypatch, capsys, ["--model", str(llada_folder), *arguments])
    assert message in line


def failure(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["crocodil", "generate", *arguments])
    with pytest.raises(SystemExit):
        main()
    line = capsys.readouterr().err
    assert line.startswith("crocodil: ")
    assert line.count("\n") == 1
    return line


def test_a_causal_model_and_a_name_that_is_nowhere_are_one_line(monkeypatch, capsys, llada_folder, tmp_path):
    causal = shutil.copytree(llada_folder, tmp_path / "causal")
    (causal / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 64}))
    assert "train base --causal" in failure(monkeypatch, capsys, ["--model", str(causal)])
    assert "cannot be fetched" in failure(monkeypatch, capsys, ["--model", "no-such-owner/no-such-model"])


def test_a_checkpoint_without_a_chat_template_or_a_tokenizer_says_so(monkeypatch, capsys, fixtures, tmp_path):
    plain = with_tokenizer(fixtures / "llada-tiny", tmp_path / "LLaDA-tiny-Base", chat=False)
    assert "no chat template" in failure(monkeypatch, capsys, ["--model", str(plain), "--chat", "--prompt", "x"])
    (plain / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in failure(monkeypatch, capsys, ["--model", str(plain)])


def test_a_prompt_that_is_not_text_is_one_line(monkeypatch, capsys, llada_folder):
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"\xff")))
    line = failure(monkeypatch, capsys, ["--model", str(llada_folder), "--prompt-file", "-"])
    assert "stdin is not UTF-8 text: byte 0 is 0xff" in line


def test_a_prompt_in_a_file_loses_only_the_line_break_at_its_end(tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b" a\n\nb\n\r\n")
    assert read_prompt(tmp_path / "prompt.txt") == " a\n\nb\n"


def test_the_tiny_tokenizer_keeps_ascii_text(base):
    text = "def f(x):\n    return x + 1\n"
    assert base.tokenizer.decode(base.prompt_tokens(text)) == text
    assert tiny_tokenizer.tokenizer().get_vocab_size() <= 384
