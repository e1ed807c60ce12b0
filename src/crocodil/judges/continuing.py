"""A causal language model that answers prompts: an upper anchor for models that do it in fewer calls.

The most probable token is taken at every step, so there is no randomness. With special tokens for infilling, as
Qwen2.5-Coder has them, the model also sees the text after the answer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from crocodil.judges.folders import padded
from crocodil.judges.language_model import LanguageModel

INFILLING = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
ENDS = ("<|endoftext|>", "<|im_end|>", "<|file_sep|>", "<|fim_pad|>", "<|repo_name|>", "</s>")


class Continued(NamedTuple):
    """An answer, and what it took."""

    text: str
    num_calls: int  # tokens that were generated
    num_positions: int  # that the network ran over: prompt and answer


def can_infill(model: LanguageModel) -> bool:
    """Whether the model has special tokens that show it the text after the answer."""
    return all(model.tokenizer.token_to_id(name) is not None for name in INFILLING)


def continued(
    model: LanguageModel, prompts: Sequence[tuple[str, str]], *, max_tokens: int, batch_size: int = 8
) -> list[Continued]:
    """Answer prompts, each with its suffix, in at most `max_tokens` tokens; long prompts lose their beginning."""
    rows = [_prompt_tokens(model, *prompt, room=max(1, model.context - max_tokens)) for prompt in prompts]
    answers: dict[int, Continued] = {}
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        made = _generated(model, [rows[number] for number in numbers], max_tokens)
        for number, ids in zip(numbers, made, strict=True):
            text = model.tokenizer.decode(ids, skip_special_tokens=True)
            calls = min(len(ids) + 1, max_tokens)  # the last one ends the text
            answers[number] = Continued(text, calls, len(rows[number]) + calls - 1)
    return [answers[number] for number in range(len(rows))]


def _prompt_tokens(model: LanguageModel, prompt: str, suffix: str, *, room: int) -> list[int]:
    before, after = model.tokens([prompt, suffix])
    names = [token for name in INFILLING if (token := model.tokenizer.token_to_id(name)) is not None]
    if suffix and len(names) == len(INFILLING):
        after = after[: room // 3]
        before = before[-max(1, room - len(after) - len(names)) :]
        return [names[0], *before, names[1], *after, names[2]]
    return [model.start_id, *before][-room:]


@torch.no_grad()
def _generated(model: LanguageModel, rows: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """Return the new tokens of each row, without the one that ends it."""
    from transformers import GenerationConfig

    device, ends = model.network.device, _ends(model)
    # Padding is on the left, so that new tokens follow the prompt.
    ids = padded([row[::-1] for row in rows], fill=model.start_id, device=device).flip(1)
    present = padded([[1] * len(row) for row in rows], fill=0, device=device).flip(1)
    config = GenerationConfig(
        max_new_tokens=max_tokens, do_sample=False, eos_token_id=ends, pad_token_id=ends[0], use_cache=True
    )
    made = model.network.generate(input_ids=ids, attention_mask=present, generation_config=config)
    new = made[:, ids.shape[1] :].tolist()
    return [row[: next((index for index, token in enumerate(row) if token in ends), len(row))] for row in new]


def _ends(model: LanguageModel) -> list[int]:
    """Return the tokens that end a text; there is at least one."""
    known = model.network.config.eos_token_id
    of_config = known if isinstance(known, list) else [] if known is None else [known]
    named = [model.tokenizer.token_to_id(name) for name in ENDS]
    return sorted({*of_config, *(token for token in named if token is not None)}) or [model.start_id]
