"""The paper's numbers, verbatim: LLaDA-8B and Qwen3-Embedding-0.6B on StarCoder's Python, 8 generated registers.

Where the paper prints a figure without numbers, the claims in its text are here instead.
"""

from typing import NamedTuple


class AutoencoderRow(NamedTuple):
    gen_ppl: float
    bert_score: float
    cer: float

    @property
    def is_odd(self) -> bool:
        """Whether there are more errors than characters; we keep and mark these rows (decision D13)."""
        return self.cer > 1


# Tables 1 and 2: length -> (block, NFE) -> row.
AUTOENCODER = {
    256: {
        (32, 8): AutoencoderRow(59.538, 0.901, 0.422),
        (32, 16): AutoencoderRow(20.263, 0.936, 0.210),
        (32, 32): AutoencoderRow(13.525, 0.957, 0.150),
        (32, 64): AutoencoderRow(11.301, 0.968, 0.130),
        (32, 128): AutoencoderRow(10.401, 0.970, 0.123),
        (32, 256): AutoencoderRow(10.085, 0.972, 0.118),
        (64, 8): AutoencoderRow(28.172, 0.925, 0.265),
        (64, 16): AutoencoderRow(15.553, 0.951, 0.171),
        (64, 32): AutoencoderRow(12.463, 0.963, 0.140),
        (64, 64): AutoencoderRow(10.971, 0.970, 0.124),
        (128, 8): AutoencoderRow(18.027, 0.946, 0.190),
        (128, 16): AutoencoderRow(13.244, 0.960, 0.149),
        (128, 32): AutoencoderRow(11.566, 0.968, 0.130),
        (128, 64): AutoencoderRow(10.639, 0.971, 0.122),
        (256, 4): AutoencoderRow(19.221, 0.939, 0.205),
        (256, 8): AutoencoderRow(13.937, 0.957, 0.155),
        (256, 16): AutoencoderRow(11.981, 0.965, 0.132),
        (256, 32): AutoencoderRow(10.962, 0.970, 0.123),
        (256, 64): AutoencoderRow(10.458, 0.973, 0.118),
    },
    512: {
        (32, 16): AutoencoderRow(35.477, 0.833, 1.149),
        (32, 32): AutoencoderRow(15.554, 0.877, 0.237),
        (32, 64): AutoencoderRow(9.630, 0.904, 0.146),
        (32, 128): AutoencoderRow(8.170, 0.959, 0.118),
        (32, 256): AutoencoderRow(7.583, 0.960, 0.105),
        (64, 8): AutoencoderRow(33.738, 0.764, 1.100),
        (64, 16): AutoencoderRow(29.314, 0.821, 1.196),
        (64, 32): AutoencoderRow(11.834, 0.935, 0.183),
        (64, 64): AutoencoderRow(8.989, 0.948, 0.132),
        (64, 128): AutoencoderRow(7.989, 0.955, 0.113),
        (64, 256): AutoencoderRow(7.534, 0.959, 0.103),
        (128, 8): AutoencoderRow(35.547, 0.856, 1.180),
        (128, 16): AutoencoderRow(18.715, 0.945, 1.229),
        (128, 32): AutoencoderRow(10.806, 0.953, 1.218),
        (128, 64): AutoencoderRow(7.497, 0.957, 1.152),
        (256, 8): AutoencoderRow(22.527, 0.935, 1.240),
        (256, 16): AutoencoderRow(11.828, 0.948, 0.218),
        (256, 32): AutoencoderRow(9.277, 0.955, 0.176),
        (256, 64): AutoencoderRow(8.178, 0.959, 0.158),
        (256, 128): AutoencoderRow(7.646, 0.960, 0.149),
        (512, 8): AutoencoderRow(13.146, 0.877, 1.337),
        (512, 16): AutoencoderRow(9.820, 0.904, 0.189),
        (512, 32): AutoencoderRow(8.447, 0.959, 0.163),
        (512, 64): AutoencoderRow(7.832, 0.960, 0.152),
        (512, 128): AutoencoderRow(7.517, 0.957, 0.145),
    },
}
EXAMPLE_CER = {4: 0.12, 16: 0.03}  # Fig. 5, by NFE


class GenerationPoint(NamedTuple):
    nfe: int
    mauve: float
    gen_ppl: float


# Sec. 5: (length, method, demasker calls); NFE 40 is 32 calls, plus 6.4 for the prior and 1.6 for the refresh.
GENERATION = {
    (512, "base", 512): GenerationPoint(512, 0.62, 19.4),
    (512, "conwithindisc", 32): GenerationPoint(40, 0.6, 14.3),
    (1024, "base", 1024): GenerationPoint(1024, 0.76, 23.5),
    (1024, "conwithindisc", 64): GenerationPoint(72, 0.8, 12.5),
}
LENGTHS = (256, 512, 1024)  # of generation: Sec. 5, App. G
SPEEDUP = {256: 6, 512: 13, 1024: 14}  # of ConWithinDisc, in the paper's NFE


# App. E, PRDC over 128 registers and 5,000 samples: mean and spread; that of the conditional prior is not stated.
PRDC: dict[str, dict[str, tuple[float, float | None]]] = {
    "unconditional": {
        "precision": (0.956, 0.010),
        "recall": (0.651, 0.048),
        "density": (1.105, 0.099),
        "coverage": (0.870, 0.021),
    },
    "conditional": {"recall": (0.74, None)},
}
OFFSETS_GAIN = 0.03  # App. G iii: "approximately 0.03 MAUVE"
INDEPENDENT_SHARE_WRONG = 0.5  # App. B: 25% "cat barks" and 25% "dog meows"
