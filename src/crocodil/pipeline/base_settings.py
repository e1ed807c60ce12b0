"""Default sampling settings of a base, and checks of its folder. Does not import torch."""

import os
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from crocodil.checkpoints.hub import MODEL_FILES, local_folder
from crocodil.pipeline.settings import BUILTIN, SETTINGS_FILE, Method, Settings
from crocodil.runtime.config import Length, config, read_json
from crocodil.sampling.configs import Decoding, with_decoding_knobs
from crocodil.text.chat import TOKENIZER_FILE, TokenizerConfig, has_tokenizer

CONFIG_FILE = "config.json"
FILES_WITHOUT_WEIGHTS = tuple(pattern for pattern in MODEL_FILES if pattern != "*.safetensors")
BLOCK_SIZE = 32  # LLaDA's choice for answers


@config
class BaseSettings:
    """Default sampling settings of a base. The defaults of these fields are LLaDA's."""

    length: Length = 128  # of an answer in tokens
    max_length: Length  # of prompt and answer together
    decoding: Decoding = field(default_factory=Decoding)

    @classmethod
    def of_checkpoint(cls, folder: Path) -> "BaseSettings":
        """Return the settings for a public checkpoint; a short model keeps half of its length for the prompt."""
        values = read_json(folder / CONFIG_FILE)
        max_length = values.get("max_sequence_length") or values.get("max_position_embeddings")
        if not isinstance(max_length, int):
            raise ValueError(f"{folder / CONFIG_FILE} has no max_sequence_length")
        return cls(length=min(128, max_length // 2), max_length=max_length)

    @classmethod
    def of(cls, settings: Settings) -> "BaseSettings":
        """Return the settings for the base of one of this project's models; its canvas begins with BOS."""
        decoding = settings.decoding_for(Method.BASE)
        return cls(length=settings.length - 1, max_length=settings.lengths[-1], decoding=decoding)


def answer_decoding(decoding: Decoding, knobs: dict[str, Any], *, length: int) -> Decoding:
    """Return the decoding config for an answer of this length; check that blocks and calls fit the length.

    By default there is one call per token, and blocks have 32 tokens if 32 divides the length.
    """
    decoding = with_decoding_knobs(decoding, knobs)
    block_size = decoding.block_size or (BLOCK_SIZE if length % BLOCK_SIZE == 0 else length)
    decoding = replace(decoding, block_size=block_size, calls=decoding.calls or length)
    decoding.plan(length)
    return decoding


def checkpoint_folder(path_or_name: str | os.PathLike[str]) -> Path | None:
    """Return the folder of a checkpoint in the public format of LLaDA and others; None for other models.

    From the hub, all files but the weights are fetched.
    """
    if path_or_name == BUILTIN:
        return None
    folder = local_folder(path_or_name, patterns=FILES_WITHOUT_WEIGHTS)
    if (folder / SETTINGS_FILE).is_file() or not (folder / CONFIG_FILE).is_file():
        return None
    return folder if "model_type" in read_json(folder / CONFIG_FILE) else None


def check_checkpoint(folder: Path, *, chat: bool) -> None:
    """Check that a checkpoint has a tokenizer and, for `chat`, a chat template."""
    if not has_tokenizer(folder):
        raise ValueError(f"{folder} has no {TOKENIZER_FILE}: put the file of its publisher there")
    if chat and TokenizerConfig.read(folder).template is None:
        raise ValueError(f"{folder} has no chat template: it is not tuned for chat, take an instruct checkpoint")
