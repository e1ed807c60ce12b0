"""Stage head: train the causal head that draws the tokens of one demasker call in turn (decision D88)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from crocodil.metrics.likelihood import Accuracy, accuracy
from crocodil.models.causal_head import CausalHead
from crocodil.models.demasker import Demasker
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import DemaskerObjective, HeadObjective, in_turn_loss
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.data import Data
from crocodil.training.loop import Phase, compile_each
from crocodil.training.validation import hide, parts_for_logits
from crocodil.training.work import Work, head_flops

CALL_MASK_PROBS = (0.5, 1.0)  # of validation


@dataclass
class HeadStage:
    """The head is trained; encoder and demasker are those of stage guided and stay as they are."""

    head: CausalHead
    encoder: RegisterEncoder
    demasker: Demasker
    data: Data
    objective: HeadObjective = field(default_factory=HeadObjective)
    guided_objective: DemaskerObjective = field(default_factory=DemaskerObjective)
    retokenizer: Retokenizer | None = None
    num_prior_registers: int | None = None  # validation uses the first registers, which a prior models; None: all
    name: str = "head"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"causal_head": self.head}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {"causal_head": list(self.head.parameters())}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset({"causal_head"})),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return [self.head.block, *self.demasker.backbone.blocks, *self.encoder.backbone.layers]

    def compile(self) -> None:
        compile_each(self.repeated_blocks())

    def work(self) -> Work:
        return self.data.mean_work(self._work_at)

    def length_share(self, step: int) -> float:
        return self.data.length_share(step)

    def _work_at(self, length: int) -> Work:
        flops = head_flops(
            self.demasker.config,
            self.encoder.config,
            length=length,
            objective=self.objective,
            all_mask_rate=self.guided_objective.all_mask_rate,
            draft_rate=self.guided_objective.draft_rate,
        )
        return Work(length, flops)

    @torch.no_grad()
    def encode(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def loss(self, step: int, indices: range) -> Tensor:
        return in_turn_loss(
            self.encode,
            self.demasker,
            self.head,
            self.data.tokens(step, indices),
            objective=self.objective,
            guided_objective=self.guided_objective,
            mask_id=self.demasker.config.backbone.mask_id,
            streams=self.data.streams(step, indices),
            time=self.data.times(step, indices),
        )

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Compare hidden tokens that are drawn at once, by the demasker alone, and in turn, by the head."""
        metrics: dict[str, float] = {}
        for batch in self.data.validation_batches():
            registers = self.encode(batch.tokens)[:, : self.num_prior_registers]
            for prob in CALL_MASK_PROBS:
                for way, result in self._accuracies(batch.tokens, registers, prob).items():
                    label = f"at mask {prob} {way}{batch.suffix}"
                    metrics[f"valid cross-entropy {label}"] = result.cross_entropy
                    metrics[f"valid top-1 {label}"] = result.top1
        return metrics

    def _accuracies(self, tokens: TokenIds, registers: RegisterBank, mask_prob: float) -> dict[str, Accuracy]:
        """Return the accuracy on hidden tokens. The head reads the true tokens before each of them."""
        backbone, at_once, in_turn = self.demasker.backbone, Accuracy(), Accuracy()
        is_first = torch.arange(tokens.shape[1], device=tokens.device)[None] == 0  # BOS is never drawn
        masked = hide(tokens, mask_prob, mask_id=backbone.config.mask_id, given=is_first.expand_as(tokens))
        for part in parts_for_logits(tokens, backbone.config.vocab_size):
            rows, true = masked.hidden[part], tokens[part]
            states = self.demasker.states(masked.noisy_tokens[part], registers[part])
            at_once += accuracy(backbone.logits(states[rows]), true[rows])
            in_turn += accuracy(backbone.logits(self.head(states, true, backbone)[rows]), true[rows])
        return {"at once": at_once, "in turn": in_turn}
