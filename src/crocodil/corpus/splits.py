"""The splits of a corpus, and the families of packages that lie in one split as a whole.

What building a corpus needs is not imported here: reading one, or pairs, must do without it.
"""

import re

SPLITS = ("train", "valid", "test")


def family(package: str) -> str:
    """Return the family of a package: django, django-cms and Django_Filter are one, as they may share code."""
    name = package.split("==")[0].split("/")[0].lower()
    return re.split(r"[-_.]", name)[0] or name
