"""The checker of the annotations of `crocodil` while the tests run: beartype, which lets an int stand for a float.

jaxtyping's own decorator checks the arguments of every call twice and opens a scope of sizes for it.
Only a function with a shape among its annotations needs such a scope; the others are checked by beartype alone.
"""

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
with_sizes = jaxtyping.jaxtyped(typechecker=None)


def has_shape(annotation: Any) -> bool:
    """Whether a shape occurs in the annotation; a string may stand for one."""
    if isinstance(annotation, list | tuple):
        return any(map(has_shape, annotation))
    is_shape = inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)
    return is_shape or isinstance(annotation, str) or has_shape(get_args(annotation))


def jaxtyped(thing: Any = None, *, typechecker: object = None) -> Any:
    """Check a function or the fields of a dataclass: in place of `jaxtyping.jaxtyped`."""
    if thing is None:
        return jaxtyped
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
            thing.__init__ = jaxtyped(thing.__init__)
        return thing
    annotations: Iterable[Any] = thing.__annotations__.values()
    return with_sizes(typechecked(thing)) if any(map(has_shape, annotations)) else typechecked(thing)
