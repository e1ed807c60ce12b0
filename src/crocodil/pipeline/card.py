"""The model card: README.md in a model folder, which the hub displays. It has no checksum, so it can be edited."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from torch import nn

from crocodil.checkpoints.hub import card_header
from crocodil.models.causal_head import CausalHead
from crocodil.models.demasker import Demasker
from crocodil.models.length_head import LengthHead
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Card:
    """The parts of a model card that cannot be read from the model itself."""

    license: str = "unknown"  # of the weights, by the hub's name for it, e.g. apache-2.0
    languages: tuple[str, ...] = ()  # e.g. ("code",) or ("en",)
    base_models: tuple[str, ...] = ()  # names on the hub of the models that it was trained from
    training: str = ""  # Markdown


UNKNOWN = Card()
# `crocodil report --page README.md` replaces what stands between the comments.
NOT_YET_MEASURED = """<!-- report of -: conditions, base, speed-up, quality, measurements, targets -->
Not measured yet: `crocodil evaluate` measures it.
<!-- end of report -->"""


def model_card(
    name: str,
    settings: Settings,
    networks: Mapping[str, nn.Module],
    card: Card,
    bits: Mapping[str, int | None] | None = None,  # by network, as its matrices are stored
) -> str:
    """Return the card of a model as Markdown with a YAML header."""
    header = card_header(
        license=card.license,
        language=list(card.languages) or None,
        library_name="crocodil",
        pipeline_tag="text-generation",
        tags=["crocodil", "masked-diffusion", "text-autoencoder"],
        base_model=list(card.base_models) or None,
    )
    return header + "\n".join(_body(name, settings, networks, card, bits or {})) + "\n"


def _body(
    name: str,
    settings: Settings,
    networks: Mapping[str, nn.Module],
    card: Card,
    bits: Mapping[str, int | None],
) -> Iterator[str]:
    demasker, longest = networks["demasker"], settings.lengths[-1]
    assert isinstance(demasker, Demasker)
    registers, width = demasker.config.num_registers, demasker.config.register_width
    yield f"# {name}\n"
    yield "A CRoCoDiL model: a masked diffusion language model that is guided by registers. Registers are"
    yield f"continuous vectors that describe a whole text. The model encodes texts of up to {longest} tokens into"
    yield f"{registers} registers of width {width}, decodes registers into text, and generates new text.\n"
    yield "| network | shape | parameters | matrices stored in |\n|---|---|---|---|"
    for part, network in networks.items():
        count = sum(parameter.numel() for parameter in network.parameters())
        is_both = part == "conditional" and "prior" not in networks  # decision D15
        part_name = "denoiser, both priors" if is_both else part.replace("_", " ")
        stored = "floats" if bits.get(part) is None else f"{bits[part]} bits"
        yield f"| {part_name} | {_shape(network)} | {count:,} | {stored} |"
    yield f"\n{_defaults(settings)}"
    yield f'\n## Use\n\n```python\nfrom crocodil import Crocodil\n\npipe = Crocodil.from_pretrained("{name}")'
    yield "print(pipe.generate(seed=0).texts[0])\n```\n"
    yield f"## Training\n\n{card.training or 'Not stated.'}\n"
    if parents := demasker.config.backbone.parents:
        yield f"Training started from pretrained models of these families: {', '.join(parents)}.\n"
    yield f"## Evaluation\n\n{NOT_YET_MEASURED}\n"
    yield "## Limits\n"
    yield "Its texts look like the training data and may repeat passages of it. Do not run programs that it"
    yield f"generates. A text has at most {longest} tokens."


def _defaults(settings: Settings) -> str:
    """Return the settings that differ from those of the paper."""
    usual = Settings(length=settings.length)
    changed = [
        f"`{name}` {value}"
        for part in ("decoding", "drawing")
        for name, value in asdict(getattr(settings, part)).items()
        if value != getattr(getattr(usual, part), name)
    ]
    return (
        f"By default it fills {settings.length} tokens, with {', '.join(changed) or 'the settings of the paper'}."
    )


def _shape(network: nn.Module) -> str:
    if isinstance(network, Demasker):
        return f"LLaDA, {_size(network.backbone)}"
    if isinstance(network, LLaDA):
        return f"LLaDA, {_size(network)}"
    if isinstance(network, LengthHead):
        return f"answers of 1 to {network.config.max_length} tokens"
    if isinstance(network, CausalHead):
        return f"1 layer x {network.config.backbone.width}"
    assert isinstance(network, RegisterEncoder | RegisterDenoiser)
    return f"{_size(network)}, {network.config.num_registers} registers"


def _size(network: LLaDA | RegisterEncoder | RegisterDenoiser) -> str:
    return f"{network.config.num_layers} layers x {network.config.width}"
