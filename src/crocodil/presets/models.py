"""The shapes of public networks: the paper's, other bases, and causal models that a base may begin as."""

from crocodil.models.demasker import DemaskerConfig
from crocodil.models.llada import LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig


def llada_8b() -> LLaDAConfig:
    """GSAI-ML/LLaDA-8B-Base and -Instruct: 291 tensors, 8,015,581,184 parameters."""
    return LLaDAConfig(
        vocab_size=126_464,
        width=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        mlp_width=12_288,
        mask_id=126_336,
        eos_id=126_081,
        pad_id=126_081,
    )


def illada_8b() -> LLaDAConfig:
    """GSAI-ML/iLLaDA-8B-Base by its published shape; the ids of its special tokens are not published with it."""
    return LLaDAConfig(
        vocab_size=155_136,
        width=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        mlp_width=14_336,
        tied_head=True,
        max_length=8192,
        mask_id=0,
        eos_id=0,
        pad_id=0,
    )


def smollm2_135m() -> LLaDAConfig:
    """HuggingFaceTB/SmolLM2-135M: 134,515,008 parameters; all its rows are used, so rows for [MASK] are added."""
    return LLaDAConfig(
        vocab_size=49_216,
        width=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        mlp_width=1536,
        rope_theta=100_000.0,
        tied_head=True,
        max_length=8192,
        parents=("llama-30x576-49152",),
        mask_id=49_152,
        eos_id=0,
        pad_id=0,
    )


def qwen25_coder_05b() -> LLaDAConfig:
    """Qwen/Qwen2.5-Coder-0.5B: 494,032,768 parameters; [MASK] is the first of its 271 unused rows."""
    return LLaDAConfig(
        vocab_size=151_936,
        width=896,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        mlp_width=4864,
        qkv_bias=True,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        tied_head=True,
        max_length=32_768,
        parents=("qwen2-24x896-151936",),
        mask_id=151_665,
        eos_id=151_643,
        pad_id=151_643,
    )


def paper_demasker() -> DemaskerConfig:
    """Sec. 5: LLaDA-8B guided by 128 registers of width 1024."""
    return DemaskerConfig(backbone=llada_8b())


def paper_encoder() -> RegisterEncoderConfig:
    """Sec. 5: Qwen3-Embedding-0.6B with 127 suffix registers after its summary vector."""
    return RegisterEncoderConfig(
        vocab_size=151_669,
        width=1024,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_width=128,
        mlp_width=3072,
        end_id=151_643,
    )


def paper_prior(num_registers: int = 128) -> RegisterDenoiserConfig:
    """App. E: 28 layers, "roughly 400M", over all registers; without cross-attention 363M (decision D22)."""
    return RegisterDenoiserConfig(num_registers=num_registers)


def paper_conditional_prior(num_registers: int = 128) -> RegisterDenoiserConfig:
    """App. E, for ConWithinDisc: cross-attention to all 128 registers of the visible text; 483M (D22)."""
    return RegisterDenoiserConfig(num_registers=num_registers, condition_width=1024, condition_length=128)
