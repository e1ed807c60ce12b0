"""The checker of the annotations of `crocodil` while the tests run: beartype, which lets an int stand for a float.

jaxtyping's own decorator binds the arguments of every call and checks them twice, which takes half of the time of
the tests. Here arguments are checked once, and only a function with a shape among its annotations binds them, so
that a size such as "B" is the same within one call.
"""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, ForwardRef, Literal, get_args, get_origin

import jaxtyping
from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_with_sizes = jaxtyping.jaxtyped(typechecker=None)
_jaxtyped = jaxtyping.jaxtyped(typechecker=typechecked)  # passes names that are imported for mypy alone


def checked(thing: Any = None, *, typechecker: object = None) -> Any:
    """Check the calls of a function or the fields of a dataclass; stands in for `jaxtyping.jaxtyped`."""
    if thing is None:
        return checked
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
            thing.__init__ = checked(thing.__init__)
        return thing
    parts = [part for annotation in thing.__annotations__.values() for part in _parts(annotation)]
    own_class = thing.__qualname__.split(".")[0]
    if any(isinstance(part, str | ForwardRef) and part != own_class for part in parts):
        return _jaxtyped(thing)
    has_shapes = any(inspect.isclass(part) and issubclass(part, jaxtyping.AbstractArray) for part in parts)
    return _with_sizes(typechecked(thing)) if has_shapes else typechecked(thing)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all annotations within it."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in annotation if isinstance(annotation, list) else get_args(annotation):
            yield from _parts(part)
