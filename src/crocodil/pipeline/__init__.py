"""Trained models with their tokenizers: generate, encode, decode, complete.

Names are imported when they are first used, so that settings can be read without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crocodil.pipeline.base_model import Base
    from crocodil.pipeline.canvases import Given
    from crocodil.pipeline.crocodil import Crocodil
    from crocodil.pipeline.results import Generation, Registers, Snapshot
    from crocodil.pipeline.settings import Method, Settings

_HOMES = {
    "Base": "base_model",
    "Crocodil": "crocodil",
    "Generation": "results",
    "Given": "canvases",
    "Method": "settings",
    "Registers": "results",
    "Settings": "settings",
    "Snapshot": "results",
}

__all__ = ["Base", "Crocodil", "Generation", "Given", "Method", "Registers", "Settings", "Snapshot"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'crocodil.pipeline' has no attribute {name!r}")
    return getattr(import_module(f"crocodil.pipeline.{_HOMES[name]}"), name)
