"""Complete training runs as values, for the vocabulary of a given corpus."""

from crocodil.corpus.shards import Corpus
from crocodil.models.demasker import DemaskerConfig
from crocodil.models.llada import LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig
from crocodil.training.loop import LoopConfig
from crocodil.training.run import Run


def tiny(corpus: Corpus) -> Run:
    """Every stage on a CPU in about two minutes: the real classes, too small to be of use."""
    width, num_registers, register_width = 64, 8, 32
    vocabulary = corpus.description["tokenizer"]
    special = vocabulary["special"]
    backbone = LLaDAConfig(
        vocab_size=vocabulary["vocab_size"], width=width, num_layers=2, num_heads=4, num_kv_heads=4,
        mlp_width=2 * width, mask_id=special["mask"], eos_id=special["eos"], pad_id=special["pad"],
    )  # fmt: skip
    encoder = RegisterEncoderConfig(
        vocab_size=vocabulary["vocab_size"], width=width, num_layers=2, num_heads=4, num_kv_heads=4, head_width=16,
        mlp_width=2 * width, end_id=special["eos"], num_registers=num_registers, register_width=register_width,
    )  # fmt: skip
    prior = {"num_registers": 4, "register_width": register_width, "width": width, "num_layers": 2, "num_heads": 4}
    loop = LoopConfig(
        num_steps=120, batch_size=16, learning_rate=4e-3, warmup_steps=10, evaluate_every=60, save_every=40,
        average_decay=0.95,
    )  # fmt: skip
    return Run(
        length=64,
        demasker=DemaskerConfig(backbone=backbone, num_registers=num_registers, register_width=register_width),
        encoder=encoder,
        prior=RegisterDenoiserConfig(**prior),
        conditional=RegisterDenoiserConfig(
            **prior, condition_width=register_width, condition_length=num_registers
        ),
        base_loop=loop,
        guided_loop=loop,
        prior_loop=loop,
        conditional_loop=loop,
        encoder_warmup_steps=20,
    )
