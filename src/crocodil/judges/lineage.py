"""Which judge may judge a model: none that shares weights with it, for it would recognise its own habits."""

from collections.abc import Collection
from typing import Any, Protocol, runtime_checkable

from crocodil.checkpoints.causal import PARENTS, family_of

_FIELDS = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")


@runtime_checkable
class HasLineage(Protocol):
    """A judge or an embedder."""

    @property
    def name(self) -> str: ...
    @property
    def families(self) -> tuple[str, ...]: ...


def families_of(network: Any) -> tuple[str, ...]:
    """Return the families of pretrained models that the weights of a transformers model come from, or may."""
    config = network.config
    values = {name: getattr(config, name, None) for name in _FIELDS}  # GPT-2 has other names in its config.json
    return tuple(getattr(config, PARENTS, None) or [family_of(values)])


def check_unrelated(judge: HasLineage, parents: Collection[str]) -> None:
    """Refuse a judge of one of the families that a model's weights come from (`LLaDAConfig.parents`)."""
    if shared := [family for family in judge.families if family in parents]:
        raise ValueError(
            f"{judge.name} may not judge this model: the weights of both come from {shared[0]}; "
            f"choose another judge (`crocodil judges list`)"
        )
