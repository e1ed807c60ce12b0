"""Given text on a canvas: where it meets masks it is healed, and never changed."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from torch.nn.functional import one_hot

from crocodil.pipeline import Given
from crocodil.pipeline.canvases import cut_to_fit, masked_canvas, split_to_fit, tail_that_fits
from crocodil.pipeline.folder import parts_of
from crocodil.pipeline.settings import BUILTIN
from crocodil.processes.categorical import Allowed
from crocodil.processes.reveal import MostConfident, Remask
from crocodil.sampling import decode as decode_module
from crocodil.sampling.call import settle
from crocodil.sampling.configs import Decoding
from crocodil.sampling.decode import decode
from crocodil.sampling.guidance import Unguided
from crocodil.text.tokenizer import Tokenizer, heal_beginning

LENGTH = 32
PROGRAMS = [
    "def f(x):\n    if x:\n        return x\n",
    "class A:\n\tb = 'é中'\n\n\n   # ö\r\n\n    c",
    "x   =  [1,\n     2]\n\n\n\n\n\n",
]


@cache
def tokenizer():
    return Tokenizer.load(parts_of(BUILTIN)["tokenizer"])


@cache
def network():
    special, size = tokenizer().special, len(tokenizer())
    ids = {"mask_id": special.mask, "eos_id": special.eos, "pad_id": special.pad}
    return tiny.llada(replace(tiny.BACKBONE, vocab_size=size + 8, **ids))  # more rows than there are tokens


def decoding(**choices):
    return Decoding(**({"calls": 2, "temperature": 1.0} | choices))


def together(canvases):
    """One batch of canvases that have been given different texts."""
    rows, tables = [], [torch.ones(1, len(tokenizer()), dtype=torch.bool)]
    for canvas in canvases:
        if canvas.allowed is None:  # its border tokens have no alternative
            rows.append(torch.zeros(1, LENGTH, dtype=torch.int64))
            continue
        first = sum(len(table) for table in tables) - 1
        rows.append(canvas.allowed.row + first * (canvas.allowed.row > 0))
        tables.append(canvas.allowed.tokens[1:])
    allowed = Allowed(torch.cat(rows), torch.cat(tables))
    return replace(canvases[0], tokens=torch.cat([canvas.tokens for canvas in canvases]), allowed=allowed)


def texts_of(givens, demask, how):
    canvas = together([masked_canvas(given, tokenizer(), length=LENGTH) for given in givens])
    streams = tiny.streams(len(givens))
    canvas, _ = settle(demask, canvas, how, streams=streams)
    made = decode(demask, canvas, how, streams=streams)
    return [tokenizer().decode(ids) for ids in made.tokens.tolist()]


@pytest.mark.parametrize("rule", [MostConfident(), pytest.param(Remask(), marks=pytest.mark.slow)], ids=repr)
def test_text_begins_with_every_prefix_and_ends_with_every_suffix_wherever_they_are_cut(rule):
    cuts = [(text, cut) for text in PROGRAMS for cut in range(1, len(text), 2)]
    ends = [Given(prefix=text[:cut]) for text, cut in cuts] + [Given(suffix=text[cut:]) for text, cut in cuts]
    around = [Given(prefix=text[: cut // 2], suffix=text[-cut // 2 :]) for text, cut in cuts[1::3]]
    givens = [given for given in ends + around if given]
    how = decoding(rule=rule, temperature=float(rule == Remask()))
    for given, text in zip(givens, texts_of(givens, Unguided(network()), how), strict=True):
        assert text.startswith(given.prefix)
        assert text.endswith(given.suffix)


def eager(text):
    """Wants this token everywhere, whatever it sees."""
    (wanted,) = tokenizer().encode(text)
    return lambda noisy_tokens, registers, places: (
        9.0 * one_hot(torch.full((places.numel(),), wanted), len(tokenizer()))
    )


@pytest.mark.parametrize("prefix", ["def f():\n", "def f():\n  ", "def f():\n   ", "def f():", "if x:\n    y\n"])
def test_a_prefix_goes_on_at_the_indentation_that_the_demasker_wants(prefix):
    how = decoding(temperature=0.0)
    (text,) = texts_of([Given(prefix=prefix)], eager("\n        "), how)
    assert text.startswith(f"{prefix.rstrip()}\n        ")
    assert text[len(prefix.rstrip()) :].strip() == ""
    unhealed = masked_canvas(Given(prefix=prefix, heal=False), tokenizer(), length=LENGTH)
    assert unhealed.allowed is None
    made = decode(eager("\n        "), unhealed, how, streams=tiny.streams(1))
    if prefix[-1] != ":":  # as it was: the given line break, and then another
        assert f"{prefix}\n" in tokenizer().decode(made.tokens[0].tolist())


@pytest.mark.parametrize("suffix", ["    return x\n", "\n\nx = 1\n", "\n    return x\n", "  ) + 1\n"])
def test_the_rest_of_a_healed_suffix_has_the_tokens_that_it_has_after_a_line_break(suffix):
    kept, fitting = heal_beginning(suffix, tokenizer())
    assert fitting
    assert tokenizer().encode(f"\n{suffix}")[-len(kept) :] == kept


def test_a_suffix_may_begin_at_a_line_of_its_own():
    how = decoding(temperature=0.0)
    (text,) = texts_of([Given(prefix="def f():", suffix="    return rows\n")], eager("\n    "), how)
    assert text.endswith("    return rows\n")
    assert text.splitlines()[-1].strip() == "return rows"


def test_what_is_healed_is_masked_so_that_registers_are_drawn_without_it():
    special, plain = tokenizer().special, Given(prefix="def f():\n", suffix="\n\nx = 1\n")
    healed = masked_canvas(plain, tokenizer(), length=LENGTH)
    fixed = masked_canvas(replace(plain, heal=False), tokenizer(), length=LENGTH)
    changed = (healed.tokens[0] != fixed.tokens[0]).nonzero().flatten().tolist()
    assert changed == healed.allowed.row[0].nonzero().flatten().tolist()
    borders = [tokenizer().encode(plain.prefix)[-1], tokenizer().encode(plain.suffix)[0]]
    assert fixed.tokens[0, changed].tolist() == borders
    assert (healed.tokens[0, changed] == special.mask).all()


def test_a_word_may_go_on_and_only_so():
    allowed = masked_canvas(Given(prefix="import o"), tokenizer(), length=LENGTH).allowed
    words = [tokenizer().decode([i]) for i in allowed.tokens[1].nonzero().flatten().tolist()]
    assert {" o", " os", " open"} <= set(words)
    assert all(word.startswith(" o") for word in words)


def test_given_text_must_leave_room():
    with pytest.raises(ValueError, match="the given text takes 4 of 4 tokens and leaves none to fill"):
        masked_canvas(Given(prefix="x = ("), tokenizer(), length=4)
    with pytest.raises(ValueError, match=r"takes 4 of 9 tokens and leaves 5 to fill, fewer than the 6 asked for"):
        masked_canvas(Given(prefix="x = (", tokens=6), tokenizer(), length=9)
    with pytest.raises(ValueError, match="tokens is 0: at least one token is filled"):
        masked_canvas(Given(prefix="x = (", tokens=0), tokenizer(), length=9)


# ---------------------------------------------------------------- long texts


def clear_split(text, length):
    """Tokenize the whole rest for each piece."""
    pieces = []
    while text:
        piece, rest = cut_to_fit(text, tokenizer(), length=length)
        if rest:
            piece = piece[: piece.rfind("\n") + 1] or piece
        pieces.append(piece)
        text = text[len(piece) :]
    return pieces


def test_long_texts_are_split_as_if_all_of_them_were_tokenized():
    text = Path(decode_module.__file__).read_text() * 2
    for length in (8, 64):
        assert split_to_fit(text, tokenizer(), length=length) == clear_split(text, length)
    gap = "x = 1\n" + " " * 5000 + "y = 2\n" + "é" * 3000 + "\n"
    assert "".join(split_to_fit(gap, tokenizer(), length=16)) == gap


def test_the_tail_of_a_text_has_the_most_lines_that_fit():
    lines = [f"value_{number} = {number} * width\n" for number in range(60)]
    for room in (20, 100, 400):
        tail = tail_that_fits("".join(lines), tokenizer(), room=room)
        count = tail.count("\n")
        assert tail == "".join(lines[-count:])
        longer = "".join(lines[-count - 1 :])
        assert len(tokenizer().encode(tail)) <= room < len(tokenizer().encode(longer))
    cut = tail_that_fits("x = 1\n" + "a b c " * 50, tokenizer(), room=20)
    assert "a b c ".endswith(cut[-6:])
    assert 0 < len(tokenizer().encode(cut)) <= 20
    assert tail_that_fits("", tokenizer(), room=20) == ""
