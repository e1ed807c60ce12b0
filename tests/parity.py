"""Print how far the logits of our networks are from those of the reference implementations.

    python -m tests.parity [FOLDER ...]    # folders of real causal checkpoints, such as installed judges

Differences are the largest over all logits, in float32; beside them stands the largest logit.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file
from torch import Tensor

from crocodil.checkpoints.bases import load_base
from crocodil.checkpoints.causal import load_causal
from crocodil.text.tokenizer import Tokenizer
from tests.tiny_causal import NUM_TOKENS, save_causal

FIXTURES = Path(__file__).parent / "fixtures"
TEXT = Path(__file__).read_text()
MAX_TOKENS = 256
Row = tuple[str, str, Tensor, Tensor]  # checkpoint, reference, our logits, theirs


def tiny_rows(folder: Path) -> Iterator[Row]:
    tokens = torch.randint(0, NUM_TOKENS, (2, 64), generator=torch.Generator().manual_seed(0))
    for kind in ("llama", "qwen2", "qwen3"):
        for tied in (True, False):
            name = f"tiny {kind}, {'tied' if tied else 'untied'} head"
            theirs = save_causal(folder / name, kind, tie_word_embeddings=tied)
            ours = load_causal(folder / name)
            yield name, "transformers, causal", ours(tokens, causal=True), theirs(tokens).logits
            theirs.config.is_causal = False
            yield name, "transformers, both ways", ours(tokens), theirs(tokens).logits


def golden_rows() -> Iterator[Row]:
    for name in ("llada-tiny", "llada-tiny-gqa", "dream-tiny"):
        golden = load_file(FIXTURES / name / "golden.safetensors")
        ours, theirs = load_base(FIXTURES / name)(golden["input_ids"]), golden["logits"]
        if name.startswith("dream"):  # Dream's sampler shifts the logits
            theirs = torch.cat([theirs[:, :1], theirs[:, :-1]], dim=1)
        yield name, "public modelling code", ours, theirs


def real_rows(folder: Path) -> Iterator[Row]:
    """Compare a real checkpoint on the text of this file."""
    from transformers import AutoModelForCausalLM

    tokens = torch.tensor([Tokenizer.load(folder / "tokenizer.json").encode(TEXT)[:MAX_TOKENS]])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_causal(folder, dtype=torch.float32)
    yield folder.name, "transformers, causal", ours(tokens, causal=True), theirs(tokens).logits


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    folders = parser.parse_args().folders
    print("| checkpoint | compared with | largest difference | largest logit |\n|---|---|---|---|")
    with TemporaryDirectory() as scratch:
        sources = [golden_rows(), tiny_rows(Path(scratch)), *map(real_rows, folders)]
        for name, reference, ours, theirs in (row for rows in sources for row in rows):
            difference = (ours[..., : theirs.shape[-1]] - theirs).abs().max().item()
            print(f"| {name} | {reference} | {difference:.1e} | {theirs.abs().max().item():.1f} |")


if __name__ == "__main__":
    main()
