"""Pairs of prompts and answers: where programs are cut, and that every pair keeps its split and its source."""

import ast
import contextlib
import inspect
import json

import pytest
from typer.testing import CliRunner

from crocodil import cli
from crocodil.corpus import cuts, pairs
from crocodil.corpus.cuts import WITH_BLOCKS, Cuts, cuts_of
from crocodil.corpus.pairs import PAIRS_FILE, Pair, Pairs, read_rows, write_pairs
from crocodil.corpus.shards import TOKENIZER_FILE
from crocodil.text.tokenizer import Tokenizer

PROGRAM = '''
class Reader:
    """Reads files."""

    @cached
    def read(self, path):
        """Return the lines of a file."""

        # é: the file may be missing
        if not path.exists():
            return []
        return path.read_text().split("\\n")

    def stub(self):
        """Do nothing."""
        pass


def mean(values): "The mean."; return sum(values)


def clip(x):
    """Clip."""
    if x < 0: x = 0
    elif x > 1:
        x = 1
    # noqa: this is for a checker
    y = x
    # x = y + 1 if y else x
    return y
'''.strip()


def parts(text: str, kind: str) -> list[tuple[str, str, str]]:
    return [
        (text[whole.start : answer.start], text[answer.start : answer.end], text[answer.end : whole.end])
        for _, whole, answer in cuts_of(text, Cuts(kinds=(kind,), per_document=100))
    ]


def test_a_body_is_what_follows_the_docstring_and_a_stub_or_a_shared_line_has_none():
    prompts = {prompt: answer for prompt, answer, _ in parts(PROGRAM, "body")}
    read = '    @cached\n    def read(self, path):\n        """Return the lines of a file."""\n\n'
    assert [prompt.split("(")[0].split()[-1] for prompt in prompts] == ["read", "clip"]
    assert prompts[read].startswith("        # é: the file")
    assert prompts[read].endswith('split("\\n")')


def test_a_block_follows_a_comment_in_words_and_neither_a_directive_nor_code():
    (prompt, answer, suffix), *others = parts(PROGRAM, "block")
    assert prompt.startswith("class Reader:")
    assert prompt.endswith("# é: the file may be missing\n")
    assert (
        answer
        == '        if not path.exists():\n            return []\n        return path.read_text().split("\\n")'
    )
    assert (suffix, others) == ("", [])


def test_a_middle_is_whole_statements_of_a_definition_and_other_statements_fit_in_its_place():
    text = "\n".join(
        f"def f{n}(x):\n    y = x\n    for i in y:\n        x = i\n        y = 2\n    return y\n" for n in range(9)
    )
    found = parts(text, "middle")
    assert len({answer for _, answer, _ in found}) > 3
    for prompt, answer, suffix in found:
        assert prompt + answer + suffix in text
        indentation = answer[: len(answer) - len(answer.lstrip())]
        ast.parse(f"{prompt}{indentation}pass{suffix}")


def test_statements_are_found_in_the_order_of_a_walk_through_the_whole_tree():
    match = "match x:\n    case 1:\n        try: f()\n        except E: g()\n    case _: h()\n"
    for text in (match, *map(inspect.getsource, (ast, cuts, contextlib))):
        source = cuts._Source("", text)
        walked = [node for node in ast.walk(source.tree) if isinstance(node, WITH_BLOCKS | ast.Module)]
        assert source.nodes == walked
        assert len(walked) > 8


def test_pairs_are_stretches_of_documents_and_lie_in_their_splits(corpus, tmp_path):
    written = write_pairs(corpus.directory, tmp_path / "pairs")
    pairs = [pair for split in ("train", "valid", "test") for pair in written.split(split)]
    assert {pair.split for pair in pairs} == {"train", "valid", "test"}
    tokenizer = Tokenizer.load(corpus.directory / TOKENIZER_FILE)
    for split in ("valid", "test"):
        texts = {}
        for shard in corpus.shards(split):
            for row, path in zip(shard.documents, shard.paths, strict=True):
                texts[path] = tokenizer.decode(shard.tokens[row["start"] :][: row["length"]].tolist())
        for pair in (pair for pair in pairs if pair.split == split):
            start = pair.start - len(pair.prompt)
            whole = pair.prompt + pair.answer + pair.suffix
            assert texts[pair.path][start : start + len(whole)] == whole


def test_the_same_corpus_gives_the_same_folder_and_a_random_part_of_it(corpus, tmp_path):
    words = ["corpus", "pairs", str(corpus.directory), "--out", str(tmp_path / "a"), "--kind", "body"]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    whole = Pairs(tmp_path / "a")
    few = write_pairs(corpus.directory, tmp_path / "b", cuts=Cuts(kinds=("body",)), count=3)
    assert few.description["splits"]["test"] == {"body": 3}
    assert [pair.kind for pair in few.split("train")] == ["body"] * 3
    assert list(few.split("test")) == list(whole.split("test"))[:3]


def test_the_number_of_processes_does_not_change_a_byte(corpus, tmp_path, monkeypatch):
    one = write_pairs(corpus.directory, tmp_path / "one", num_processes=1)
    monkeypatch.setattr(pairs, "DOCUMENTS_AT_ONCE", 3)
    two = write_pairs(corpus.directory, tmp_path / "two", num_processes=2)
    assert (two.directory / PAIRS_FILE).read_bytes() == (one.directory / PAIRS_FILE).read_bytes()
    assert all(list(one.split(split)) == list(two.split(split)) for split in ("train", "valid", "test"))
    with pytest.raises(ValueError, match="at least 1, not 0"):
        write_pairs(corpus.directory, tmp_path / "none", num_processes=0)


def test_parts_of_a_file_have_its_pairs(corpus, tmp_path):
    whole = write_pairs(corpus.directory, tmp_path / "pairs").split("train")
    parts = whole.parts(7)
    assert [len(part) for part in parts[:-1]] == [7] * (len(whole) // 7)
    assert [pair for part in parts for pair in part] == [whole[number] for number in range(len(whole))]
    assert parts[1][0] == whole[7]


def test_a_pair_of_train_is_left_out_of_test_and_rows_of_a_prompt_share_a_split(tmp_path):
    file = tmp_path / "own.jsonl"
    rows = [{"prompt": f"p{n // 2}", "answer": f"a{n}"} for n in range(400)]
    rows += [{"prompt": "p", "answer": "a", "split": split} for split in ("test", "train")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = write_pairs(file, tmp_path / "pairs", held_out=0.2)
    assert pairs.description["left_out"] == {"in test, also in train": 1}
    splits: dict[str, set[str]] = {}
    for split in ("train", "valid", "test"):
        for pair in pairs.split(split):
            splits.setdefault(pair.prompt, set()).add(pair.split)
    assert {len(found) for found in splits.values()} == {1}
    assert set.union(*splits.values()) == {"train", "valid", "test"}
    assert read_rows(file)[0].path == f"{file}, line 1"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ('{"prompt": "p"}', "line 1: answer is missing"),
        ('{"prompt": "", "answer": "a"}', "line 1: prompt should not be empty"),
        ('{"prompt": "p", "answer": "a", "split": "dev"}', "line 1: split should be 'train', 'valid' or 'test'"),
        ("[1]", "line 1: expected an object with prompt and answer, not list"),
        ("{", "is not a file of JSON lines"),
    ],
)
def test_a_row_that_is_no_pair_is_an_error_of_one_line(row, fault, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(row + "\n")
    with pytest.raises(ValueError, match=fault) as caught:
        read_rows(file)
    assert "\n" not in str(caught.value)


def test_a_damaged_folder_of_pairs_is_refused(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"prompt": "p", "answer": "a", "split": "train"}\n')
    pairs = write_pairs(tmp_path / "own.jsonl", tmp_path / "pairs")
    assert pairs.split("train")[-1] == Pair(
        prompt="p", answer="a", split="train", path=pairs.split("train")[0].path
    )
    (tmp_path / "pairs" / "train.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="missing or damaged"):
        Pairs(tmp_path / "pairs").split("train")
    (tmp_path / "pairs" / PAIRS_FILE).write_text("{}")
    with pytest.raises(ValueError, match="format of pairs"):
        Pairs(tmp_path / "pairs")
