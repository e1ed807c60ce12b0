"""The checker behind jaxtyping's import hook: beartype, which lets an int stand for a float."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
