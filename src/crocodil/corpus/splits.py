"""The splits of a corpus, and the families of packages that lie in one split as a whole.

This module imports nothing that only a build needs, so that corpora and pairs can be read without it.
"""

import re

SPLITS = ("train", "valid", "test")


def family(package: str) -> str:
    """Return the family of a package: django, django-cms and Django_Filter are one, as they may share code."""
    name = package.split("==")[0].split("/")[0].lower()
    return re.split(r"[-_.]", name)[0] or name
