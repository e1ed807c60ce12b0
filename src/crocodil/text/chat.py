"""Text of public checkpoints: their tokenizer files, chat templates, and where an answer ends.

Templates are rendered by transformers, in jinja's sandbox; no code of a checkpoint is run. This module does not
import torch before a template is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from crocodil.runtime.config import read_json
from crocodil.text.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILES = ("vocab.json", "merges.txt")  # instead of it: Qwen's older form, which Dream has
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
ANSWER_ENDS = ("<|eot_id|>", "<|im_end|>")  # of LLaDA and of Qwen: the end of a turn; EOS ends an answer too

Message: TypeAlias = Mapping[str, str]  # {"role": "user", "content": "..."}


@dataclass(frozen=True)
class TokenizerConfig:
    """The part of tokenizer_config.json that matters here; all of it may be missing."""

    names: Mapping[str, str]  # of special tokens: {"bos_token": "<|startoftext|>", ...}
    adds_bos: bool = False
    template: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "TokenizerConfig":
        file = folder / TOKENIZER_CONFIG_FILE
        values = read_json(file) if file.is_file() else {}
        tokens = {role: _content(value) for role, value in values.items() if role.endswith("_token")}
        return cls(
            names={role: name for role, name in tokens.items() if name is not None},
            adds_bos=values.get("add_bos_token") is True,
            template=_template(folder, values.get("chat_template")),
        )


def _content(token: Any) -> str | None:
    """Return the name of a token, written as text or as an object; None for a switch such as `add_bos_token`."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) else None


def _template(folder: Path, in_config: Any) -> str | None:
    """Return the chat template: a file of its own, or in the config as text or as a list of named templates."""
    if (folder / TEMPLATE_FILE).is_file():
        return (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    if isinstance(in_config, list):
        named = {entry.get("name"): entry.get("template") for entry in in_config if isinstance(entry, dict)}
        in_config = named.get("default")
    return in_config if isinstance(in_config, str) else None


def has_tokenizer(folder: Path) -> bool:
    return (folder / TOKENIZER_FILE).is_file() or all((folder / name).is_file() for name in VOCABULARY_FILES)


def load_tokenizer(folder: Path, **known_ids: int) -> Tokenizer:
    """Load the tokenizer of a checkpoint; `known_ids` are the special ids of its config.json."""
    config = TokenizerConfig.read(folder)
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = Tokenizer.load(folder / TOKENIZER_FILE, **known_ids)
    else:
        tokenizer = Tokenizer(_from_vocabulary(folder), **known_ids)
    bos = tokenizer.id_of(config.names.get("bos_token"))
    return tokenizer if bos is None else Tokenizer(tokenizer.raw, **known_ids, bos=bos)


def _from_vocabulary(folder: Path) -> Any:
    """Return the tokenizer of Qwen2 with this vocabulary, and the added tokens of tokenizer_config.json."""
    from tokenizers import AddedToken
    from transformers import Qwen2Tokenizer

    vocabulary, merges = (folder / name for name in VOCABULARY_FILES)
    config = folder / TOKENIZER_CONFIG_FILE
    added = read_json(config).get("added_tokens_decoder", {}) if config.is_file() else {}
    try:
        tokens = {int(number): AddedToken(**token) for number, token in added.items()}
        raw = Qwen2Tokenizer(str(vocabulary), str(merges), added_tokens_decoder=tokens).backend_tokenizer
    except Exception as error:  # the library raises bare exceptions
        raise ValueError(f"{vocabulary} and {merges.name} are not a usable tokenizer: {error}") from error
    if wrong := [token.content for number, token in tokens.items() if raw.token_to_id(token.content) != number]:
        raise ValueError(f"{config}: the id of {wrong[0]} does not follow those of {vocabulary.name}")
    return raw


@dataclass(frozen=True)
class Chat:
    """A chat template: turns messages into the tokens of a prompt that asks for an answer."""

    tokenizer: Tokenizer
    template: str
    names: Mapping[str, str]

    def tokens(self, prompt: str | Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation; a text is the message of a user.

        Special tokens of the template are tokens, and so are those that a message contains.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        from jinja2 import TemplateError

        try:
            return list(
                self._renderer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            )
        except (TemplateError, KeyError, TypeError) as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from None

    @cached_property
    def _renderer(self) -> Any:
        from transformers import PreTrainedTokenizerFast

        roles = PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES
        names = {role: name for role, name in self.names.items() if role in roles}
        # It would add a token that tokenizer.json does not have, under an id that means something else.
        known = {role: name for role, name in names.items() if self.tokenizer.id_of(name) is not None}
        return PreTrainedTokenizerFast(tokenizer_object=self.tokenizer.raw, chat_template=self.template, **known)
