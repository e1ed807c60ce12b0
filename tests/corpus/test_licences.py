from email import message_from_string

import pytest

from crocodil.corpus.licences import UNKNOWN, declared_licence, is_permissive, licence_of_text


def declared(metadata, *texts):
    return declared_licence(message_from_string(f"Name: x\n{metadata}\n\n"), texts)


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: GPL", "MIT OR Apache-2.0"),
        ("Classifier: License :: OSI Approved :: BSD License\nLicense: something", "BSD-3-Clause"),
        (
            "Classifier: License :: OSI Approved\nClassifier: License :: OSI Approved :: MIT License\n"
            "Classifier: License :: OSI Approved :: Apache Software License",
            "MIT AND Apache-2.0",
        ),
        ("License: apache 2.0", "Apache-2.0"),
        ("License: mit", "MIT"),
        ("License: Proprietary", "Proprietary"),
    ],
)
def test_the_licence_is_read_from_the_most_exact_field(metadata, licence):
    assert declared(metadata) == licence


def test_without_a_field_the_licence_files_decide():
    mit = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"
    assert declared("", mit) == "MIT"
    assert declared("", "All rights reserved.") == UNKNOWN
    assert declared("", mit, "GNU General Public License") == UNKNOWN
    assert licence_of_text("Apache License\n   Version 2.0, January 2004") == "Apache-2.0"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-2.0-only", True),
        ("MIT AND GPL-2.0-only", False),
        ("(MIT OR GPL-2.0-only) AND BSD-3-Clause", False),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("LicenseRef-Own", False),
        (UNKNOWN, False),
        ("", False),
    ],
)
def test_what_is_not_surely_permissive_is_not(expression, expected):
    assert is_permissive(expression) is expected
