from crocodil.corpus.documents import SourceFile, definitions, paragraphs, plain, without_notice

MODULE = '''"""Docs."""
import os

X = 1

# About f.
# More about f.
@decorated(
    "x"
)
def f():
    return "\\n"


class A:
    def method(self):
        pass  # inside


async def g(): pass
if X:
    def hidden():
        pass'''


def test_definitions_are_top_level_with_their_decorators_and_comments():
    file = SourceFile("m.py", MODULE)
    parts = [file.text[start:end] for start, end in definitions(file)]
    assert parts[0].startswith("# About f.\n# More about f.\n@decorated(")
    assert parts[0].endswith('return "\\n"')
    assert parts[1:] == ["class A:\n    def method(self):\n        pass  # inside", "async def g(): pass"]


def test_form_feeds_and_unicode_do_not_shift_definitions():
    file = SourceFile("m.py", "s = 'äöü\u2028𝄞'\n\x0c\ndef f():\n    return s\n\n\ndef g():\n    return 1")
    assert [file.text[start:end] for start, end in definitions(file)] == [
        "def f():\n    return s",
        "def g():\n    return 1",
    ]


def test_what_does_not_parse_has_no_definitions():
    for text in ("def f(:", "print 'two'", "a = \x00", "(" * 10_000):
        assert SourceFile("m.py", text).tree is None
        assert definitions(SourceFile("m.py", text)) == []


def test_plain_text_has_unix_newlines_and_no_blanks_at_the_ends():
    assert plain("\ufeffa  \r\nb\t\rc\n\n\n") == "a\nb\nc"
    assert plain("\n\n    indented") == "    indented"


def test_a_leading_notice_goes_and_a_leading_remark_stays():
    notice = (
        "#!/usr/bin/python\n# -*- coding: utf-8 -*-\n#\n# Copyright 2020 Someone\n# Licensed under ...\n\nx = 1"
    )
    assert without_notice(notice) == "x = 1"
    assert without_notice("# How this works\nx = 1") == "# How this works\nx = 1"
    assert without_notice("x = 1\n# Copyright") == "x = 1\n# Copyright"


def test_paragraphs_are_what_stands_between_blank_lines():
    file = SourceFile("t.txt", "one\ntwo\n\n\nthree")
    assert [file.text[start:end] for start, end in paragraphs(file)] == ["one\ntwo", "three"]
