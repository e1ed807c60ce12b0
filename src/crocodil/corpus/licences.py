"""The licence that a package declares, and whether it is permissive.

Licences are self-declared; an ambiguous one counts as not permissive.
"""

import re
from collections.abc import Sequence
from email.message import Message

PERMISSIVE = frozenset({
    "0BSD", "AFL-3.0", "Apache-2.0", "BlueOak-1.0.0", "BSD-1-Clause", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0",
    "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "NCSA", "OFL-1.1", "PostgreSQL", "PSF-2.0",
    "Python-2.0", "Python-2.0.1", "Unlicense", "UPL-1.0", "W3C", "WTFPL", "X11", "Zlib", "ZPL-2.0", "ZPL-2.1",
})  # fmt: skip
UNKNOWN = "unknown"

# Names used in classifiers ("License :: OSI Approved :: ...") and in the License field, in lower case.
_WRITTEN = {
    "mit license": "MIT",
    "mit": "MIT",
    "the mit license": "MIT",
    "the mit license (mit)": "MIT",
    "expat": "MIT",
    "mit no attribution license (mit-0)": "MIT-0",
    "bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "new bsd license": "BSD-3-Clause",
    "modified bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3 clause": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd 3-clause \"new\" or \"revised\" license": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    "simplified bsd": "BSD-2-Clause",
    "apache software license": "Apache-2.0",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "asl 2.0": "Apache-2.0",
    "isc license (iscl)": "ISC",
    "isc": "ISC",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "psf license": "PSF-2.0",
    "zope public license": "ZPL-2.1",
    "zpl 2.1": "ZPL-2.1",
    "the unlicense (unlicense)": "Unlicense",
    "public domain": "CC0-1.0",
    "cc0 1.0 universal (cc0 1.0) public domain dedication": "CC0-1.0",
    "zlib/libpng license": "Zlib",
    "boost software license 1.0 (bsl-1.0)": "BSL-1.0",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "university of illinois/ncsa open source license": "NCSA",
    "universal permissive license (upl)": "UPL-1.0",
}  # fmt: skip

_TEXTS = (  # sentences that identify a licence
    ("Apache-2.0", r"Apache License\s+Version 2\.0, January 2004"),
    ("MIT", r"Permission is hereby granted, free of charge, to any person obtaining a copy"),
    ("BSD-3-Clause", r"Redistribution and use in source and binary forms[\s\S]{0,2000}Neither the name"),
    ("BSD-2-Clause", r"Redistribution and use in source and binary forms"),
    ("ISC", r"Permission to use, copy, modify, and(/or)? distribute this software for any purpose"),
    ("ZPL-2.1", r"Zope Public License \(ZPL\) Version 2\.1"),
)
_COPYLEFT = re.compile(
    r"GNU (Lesser |Library |Affero )?General Public License|Mozilla Public License|\b[AL]?GPL(v?[23]|-[23])",
    re.I,
)


def declared_licence(metadata: Message, texts: Sequence[str]) -> str:
    """Return the SPDX name of a package's licence, from its expression, classifiers, licence field or files."""
    if expression := metadata.get("License-Expression"):
        return expression.strip()
    classifiers = [
        value.rsplit("::", 1)[-1].strip()
        for value in metadata.get_all("Classifier", [])
        if value.startswith("License ::") and value.rsplit("::", 1)[-1].strip() != "OSI Approved"
    ]
    if classifiers:
        return " AND ".join(_spdx(value) for value in classifiers)
    field = (metadata.get("License") or "").strip()
    if field and "\n" not in field:
        return _spdx(field)
    return licence_of_text("\n".join([field, *texts]))


def licence_of_text(text: str) -> str:
    """Return the licence whose text is recognised, or UNKNOWN."""
    if _COPYLEFT.search(text):
        return UNKNOWN
    return next((name for name, words in _TEXTS if re.search(words, text)), UNKNOWN)


def is_permissive(expression: str) -> bool:
    """Return whether an SPDX expression is permissive: all licences joined by AND, or any joined by OR.

    If it mixes AND with OR, all must be permissive.
    """
    names = [name.split(" WITH ")[0].strip("() ") for name in re.split(r" AND | OR ", expression)]
    verdicts = [name in PERMISSIVE for name in names]
    return any(verdicts) if " OR " in expression and " AND " not in expression else all(verdicts)


def has_copyleft_notice(text: str) -> bool:
    """Return whether the text of a file names a copyleft licence."""
    return _COPYLEFT.search(text) is not None


def _spdx(written: str) -> str:
    by_case = {name.lower(): name for name in PERMISSIVE}
    plain = written.strip().lower()
    return by_case.get(plain) or _WRITTEN.get(plain) or written.strip()
