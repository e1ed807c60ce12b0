"""The checker of the annotations of `crocodil` while the tests run: beartype, which lets an int stand for a float.

jaxtyping's own decorator binds the arguments of every call and checks them twice. Here they are checked once, and
only a function with a shape among its annotations has a scope, in which a size such as "B" has one value.
"""

import dataclasses
import inspect
from collections.abc import Iterator
from functools import wraps
from typing import Any, ForwardRef, Literal, get_args, get_origin

import jaxtyping
from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def checked(thing: Any = None, *, typechecker: object = None) -> Any:
    """Check the calls of a function or the fields of a dataclass; stands in for `jaxtyping.jaxtyped`."""
    if thing is None:
        return checked
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
            thing.__init__ = checked(thing.__init__)
        return thing
    parts = [part for annotation in thing.__annotations__.values() for part in _parts(annotation)]
    shapes = [part for part in parts if inspect.isclass(part) and issubclass(part, jaxtyping.AbstractArray)]
    own_class = thing.__qualname__.split(".")[0]
    if (
        inspect.isgeneratorfunction(thing)
        or any(isinstance(part, str | ForwardRef) and part != own_class for part in parts)  # only mypy knows it
        or any("{" in shape.dim_str for shape in shapes)  # a size that an argument gives
    ):
        return _jaxtyped(thing, typechecker=typechecked)
    return _in_a_scope(typechecked(thing)) if shapes else typechecked(thing)


def _in_a_scope(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with _jaxtyped("context"):
            return function(*args, **options)

    return call


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all annotations within it."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in annotation if isinstance(annotation, list) else get_args(annotation):
            yield from _parts(part)
