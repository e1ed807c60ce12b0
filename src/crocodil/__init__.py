"""CRoCoDiL: masked diffusion for language, guided by a bank of continuous registers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from crocodil.checkpoints.format import load_model, save_model
    from crocodil.checkpoints.llada import load_llada
    from crocodil.checkpoints.qwen3 import load_qwen3_embedding
    from crocodil.models.demasker import Demasker
    from crocodil.models.llada import LLaDA
    from crocodil.models.register_denoiser import RegisterDenoiser
    from crocodil.models.register_encoder import RegisterEncoder
    from crocodil.pipeline import Base, Crocodil, Generation, Given, Method, Registers, Settings, Snapshot
    from crocodil.processes.plan import DecodePlan
    from crocodil.sampling.configs import Decoding, Drawing
    from crocodil.sampling.cost import Cost
    from crocodil.sampling.decode import decode
    from crocodil.sampling.state import Canvas
    from crocodil.seeding import Streams

_HOMES = {
    "Base": "pipeline",
    "Canvas": "sampling.state",
    "Cost": "sampling.cost",
    "Crocodil": "pipeline",
    "DecodePlan": "processes.plan",
    "Decoding": "sampling.configs",
    "Demasker": "models.demasker",
    "Drawing": "sampling.configs",
    "Generation": "pipeline",
    "Given": "pipeline",
    "LLaDA": "models.llada",
    "Method": "pipeline",
    "RegisterDenoiser": "models.register_denoiser",
    "RegisterEncoder": "models.register_encoder",
    "Registers": "pipeline",
    "Settings": "pipeline",
    "Snapshot": "pipeline",
    "Streams": "seeding",
    "decode": "sampling.decode",
    "load_llada": "checkpoints.llada",
    "load_model": "checkpoints.format",
    "load_qwen3_embedding": "checkpoints.qwen3",
    "save_model": "checkpoints.format",
}

__all__ = [
    "Base",
    "Canvas",
    "Cost",
    "Crocodil",
    "DecodePlan",
    "Decoding",
    "Demasker",
    "Drawing",
    "Generation",
    "Given",
    "LLaDA",
    "Method",
    "RegisterDenoiser",
    "RegisterEncoder",
    "Registers",
    "Settings",
    "Snapshot",
    "Streams",
    "decode",
    "load_llada",
    "load_model",
    "load_qwen3_embedding",
    "save_model",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch and transformers take seconds to load."""
    if name not in _HOMES:
        raise AttributeError(f"module 'crocodil' has no attribute {name!r}")
    return getattr(import_module(f"crocodil.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
