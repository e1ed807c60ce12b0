"""Choose which layers of a causal language model a smaller base keeps (decision D39)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from crocodil.checkpoints.causal import TOKENIZER_FILE, load_causal, read_causal_config
from crocodil.checkpoints.tensors import StrPath
from crocodil.corpus.order import Order
from crocodil.models.llada import LLaDA
from crocodil.runtime.progress import progress
from crocodil.shapes import Positions, TokenIds
from crocodil.training.data import to_device
from crocodil.training.stage_checks import check_tokens, check_vocabulary
from crocodil.training.workspace import Workspace

NUM_PROGRAMS = 64  # of the training split
BATCH_SIZE = 16  # programs at once


def choose_layers(
    directory: StrPath, num_kept: int, choice: str, workspace: Workspace, *, length: int
) -> tuple[int, ...]:
    """Return the layers that a base keeps of a causal model; the main rank chooses for all ranks."""
    shape, ranks = read_causal_config(directory), workspace.ranks
    check_vocabulary(workspace.corpus, shape)
    check_tokens(workspace.corpus, Path(directory) / TOKENIZER_FILE)
    spaced = spaced_layers(shape.num_layers, num_kept)
    if choice == "spaced":
        return spaced
    chosen: Sequence[int] = spaced
    if ranks.is_main:
        dtype = torch.bfloat16 if ranks.device.startswith("cuda") else torch.float32
        model = load_causal(directory, dtype=dtype, device=ranks.device).eval()
        programs = workspace.corpus.programs("train", length=length)
        numbers = Order(len(programs), "layers").at(np.arange(min(NUM_PROGRAMS, len(programs))))
        chosen = greedy_layers(model, to_device(programs.batch(numbers), ranks.device), num_kept)
    return tuple(map(int, ranks.broadcast(",".join(map(str, chosen))).split(",")))


def spaced_layers(num_layers: int, num_kept: int) -> tuple[int, ...]:
    """Return layers at even distances; the first and the last are among them if there are two or more."""
    check_num_kept(num_layers, num_kept)
    if num_kept == 1:
        return (0,)
    return tuple(round(index * (num_layers - 1) / (num_kept - 1)) for index in range(num_kept))


def greedy_layers(model: LLaDA, tokens: TokenIds, num_kept: int, *, shown: bool = True) -> tuple[int, ...]:
    """Remove one layer at a time, always the one whose removal gives the causal model the lowest loss."""
    check_num_kept(len(model.blocks), num_kept)
    kept = list(range(len(model.blocks)))
    num_trials = sum(range(num_kept + 1, len(kept) + 1))

    def loss_without(layer: int) -> float:
        with _only_layers(model, [other for other in kept if other != layer]):
            loss = causal_loss(model, tokens)
        advance(1, f"{len(kept)} layers left")
        return loss

    with progress("choosing layers", num_trials, unit="trials", shown=shown) as advance:
        while len(kept) > num_kept:
            kept.remove(min(kept, key=loss_without))  # of equally good layers, the first
    return tuple(kept)


def check_num_kept(num_layers: int, num_kept: int) -> None:
    if not 1 <= num_kept <= num_layers:
        raise ValueError(f"{num_kept} layers cannot be kept: the causal model has {num_layers}")


@torch.no_grad()
def causal_loss(model: LLaDA, tokens: TokenIds) -> float:
    """Return the mean cross-entropy of the next token, without the padding after a program."""
    total, count = 0.0, 0
    for batch in tokens.split(BATCH_SIZE):
        logits = model(batch[:, :-1], causal=True)
        is_text = is_text_or_first_end(batch, model.config.eos_id)[:, 1:]
        total += F.cross_entropy(logits[is_text].float(), batch[:, 1:][is_text], reduction="sum").item()
        count += int(is_text.sum())
    return total / count


def is_text_or_first_end(tokens: TokenIds, eos_id: int) -> Positions:
    """Return True up to the first EOS after the first position, which may hold an EOS in the place of a BOS."""
    is_end = tokens == eos_id
    is_end[:, 0] = False
    return (is_end.cumsum(dim=1) - is_end.long()) == 0


@contextmanager
def _only_layers(model: LLaDA, layers: Sequence[int]) -> Iterator[None]:
    blocks = model.blocks
    model.blocks = nn.ModuleList(blocks[layer] for layer in layers)
    try:
        yield
    finally:
        model.blocks = blocks
