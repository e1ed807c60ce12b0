"""Base: a masked diffusion model without registers, such as LLaDA, with its tokenizer. It answers prompts.

Every sample has its own random streams, so an answer does not depend on the batch size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias, cast

import torch

from crocodil.checkpoints.bases import base_config, load_base
from crocodil.checkpoints.tensors import Device, StrPath
from crocodil.models.llada import LLaDA
from crocodil.pipeline.base_settings import (
    BaseSettings,
    answer_decoding,
    check_checkpoint,
    checkpoint_folder,
)
from crocodil.pipeline.batches import Job, SampleBatch, Watch, joined
from crocodil.pipeline.engine import affordable_batch, compile_blocks, engine_for
from crocodil.pipeline.folder import TOKENIZER_FILE, check_vocabulary
from crocodil.pipeline.pricing import mean_price
from crocodil.pipeline.results import Generation, OnSnapshot, snapshots
from crocodil.pipeline.settings import SETTINGS_FILE, model_folder, read_settings
from crocodil.processes.plan import DecodePlan
from crocodil.runtime.devices import checked_device, default_dtype
from crocodil.sampling.call import Engine
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import Cost
from crocodil.sampling.decode import decode
from crocodil.sampling.guidance import PromptGuided, Unguided
from crocodil.sampling.state import Canvas, Samples
from crocodil.seeding import Streams
from crocodil.text.chat import ANSWER_ENDS, Chat, Message, TokenizerConfig, load_tokenizer
from crocodil.text.tokenizer import Tokenizer

BASE_FOLDER = "base"  # of this project's models
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]  # text; token ids; with `chat`, text or messages
Prompts: TypeAlias = int | str | Sequence[Message] | Sequence[Prompt]  # a number; one text; one conversation; many


@dataclass(frozen=True)
class Request:
    """Checked prompts as tokens, and how they are answered."""

    prompts: list[list[int]]
    length: int  # of each answer
    decoding: Decoding

    def by_length(self) -> dict[int, list[int]]:
        """Return the numbers of the prompts of each length.

        Prompts of one length share batches. There is no padding, so an answer does not depend on other prompts.
        """
        numbers: dict[int, list[int]] = {}
        for number, prompt in enumerate(self.prompts):
            numbers.setdefault(len(prompt), []).append(number)
        return numbers


class Answers(NamedTuple):
    """A finished batch: the numbers of its prompts, and its samples without the prompts."""

    numbers: list[int]
    samples: Samples
    canvas_length: int  # with the prompt
    seconds: float

    def flop_nfes(self) -> list[float]:
        """Return the cost of each answer in calls of the network over prompt and answer."""
        return [cost.demasker_calls - cost.left_out / self.canvas_length for cost in self.samples.costs]


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base with its tokenizer. `**knobs` of its methods are fields of `Decoding`.

    `guidance` other than 1 is LLaDA's classifier-free guidance by the prompt (its `cfg_scale` + 1). It takes two
    calls per step, one of them with the prompt masked.
    """

    network: LLaDA
    tokenizer: Tokenizer
    settings: BaseSettings
    chat: Chat | None = None  # None: not tuned for chat
    adds_bos: bool = False  # prompts begin with BOS
    compiled: bool = False

    def __post_init__(self) -> None:
        check_vocabulary("base", self.network.config.vocab_size, self.tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: StrPath,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
    ) -> "Base":
        """Load a public checkpoint, or the base of one of this project's models, from a folder or the hub.

        A checkpoint has config.json, safetensors and tokenizer.json. It goes to the GPU if there is one, in
        bfloat16. No code of the checkpoint is run.
        """
        device = torch.device(checked_device(device))
        checkpoint = checkpoint_folder(path_or_name)
        parts = _own_parts(path_or_name) if checkpoint is None else _checkpoint_parts(checkpoint)
        weights = path_or_name if checkpoint is not None else model_folder(path_or_name) / BASE_FOLDER
        network = load_base(weights, device=device, dtype=dtype or default_dtype(device))
        if compiled:
            compile_blocks([network])
        return cls(network=network.eval().requires_grad_(False), **parts, compiled=compiled)

    # ------------------------------------------------------------ prompts -> answers

    def generate(
        self,
        prompts: Prompts = 1,
        *,
        length: int | None = None,
        chat: bool = False,
        seed: int = 0,
        decoding: Decoding | None = None,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        show_progress: bool = True,
        **knobs: Any,
    ) -> Generation:
        """Return an answer of at most `length` tokens to each prompt. A number asks for texts without a prompt.

        The default length is that of the settings, or the room beside the longest prompt if that is less.
        A prompt is a text or its token ids; with `chat`, the message of a user or a list of messages. Answers do
        not repeat the prompt. `on_call` is called after every call of the network with a `Snapshot` of the batch.
        """
        request = self._request(prompts, length=length, chat=chat, decoding=decoding, **knobs)
        batches = list(self._answers(request, seed, batch_size, on_call, show_progress))
        numbers = [number for batch in batches for number in batch.numbers]
        samples = joined([batch.samples for batch in batches])
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        samples = samples._replace(tokens=samples.tokens[order], costs=[samples.costs[row] for row in order])
        flop_nfes = [price for batch in batches for price in batch.flop_nfes()]
        return self._generation(samples, sum(batch.seconds for batch in batches), flop_nfes)

    def stream(self, prompts: Prompts = 1, **options: Any) -> Iterator[str]:
        """Yield the answers in the order of the prompts, each as soon as possible.

        The options and the answers are those of `generate`.
        """
        return _in_order(self._streamed(prompts, **options))

    def stream_batches(self, prompts: Prompts = 1, **options: Any) -> Iterator[Generation]:
        """Yield what `generate` returns, one batch at a time; prompts of one length come together."""
        return (generation for _, generation in self._streamed(prompts, **options))

    def _streamed(
        self,
        prompts: Prompts,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        show_progress: bool = True,
        **options: Any,
    ) -> Iterator[tuple[list[int], Generation]]:
        request = self._request(prompts, **options)  # a mistake is raised at once
        batches = self._answers(request, seed, batch_size, on_call, show_progress)
        return (
            (batch.numbers, self._generation(batch.samples, batch.seconds, batch.flop_nfes())) for batch in batches
        )

    def _answers(
        self,
        request: Request,
        seed: int,
        batch_size: int | None,
        on_call: OnSnapshot | None,
        show_progress: bool,
    ) -> Iterator[Answers]:
        plan = request.decoding.plan(request.length)
        for prompt_length, numbers in request.by_length().items():
            canvas = self._canvas([request.prompts[number] for number in numbers], request.length)
            sample = self._sample(request.decoding, plan, prompt_length)
            job = Job(sample, canvas, ("generate", seed), len(numbers), plan.num_calls, numbers=numbers)
            size = batch_size or self.affordable_batch(request.length, prompt_length=prompt_length)
            watch = snapshots(on_call, plan.num_calls, self.tokenizer, first=prompt_length)
            left = iter(numbers)
            for samples, seconds in job.batches(size, show_progress=show_progress, watch=watch):
                answers = samples._replace(tokens=samples.tokens[:, prompt_length:], registers=None)
                yield Answers(list(islice(left, len(answers.tokens))), answers, canvas.length, seconds)

    def _sample(self, decoding: Decoding, plan: DecodePlan, prompt_length: int) -> SampleBatch:
        is_guided = decoding.guidance != 1
        demask = PromptGuided(self.network, prompt_length) if is_guided else Unguided(self.network)

        def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
            # The prompt takes the place of registers: an empty bank stands for it.
            registers = torch.zeros(len(canvas), 0, 1, device=canvas.device) if is_guided else None
            return decode(
                demask,
                canvas,
                decoding,
                plan=plan,
                registers=registers,
                streams=streams,
                on_call=watch.on_call,
                engine=self.engine,
            )

        return sample

    # ------------------------------------------------------------ prompts

    def _request(
        self,
        prompts: Prompts,
        *,
        length: int | None = None,
        chat: bool = False,
        decoding: Decoding | None = None,
        **knobs: Any,
    ) -> Request:
        given = _as_list(prompts)
        if not given:
            raise ValueError("at least one text is generated, not 0")
        if chat and not all(given):
            raise ValueError("chat answers a prompt, and there is none")
        tokens = [self.prompt_tokens(prompt, chat=chat) for prompt in given]
        longest = max(map(len, tokens))
        room = self.settings.max_length - longest
        if length is None:
            length = max(1, min(self.settings.length, room))
        if length > room:
            raise ValueError(
                f"a prompt of {longest} tokens and an answer of {length} are more than the "
                f"{self.settings.max_length} that this model takes: shorten the prompt or the length"
            )
        decoding = answer_decoding(decoding or self.settings.decoding, knobs, length=length)
        if decoding.guidance != 1 and not all(len(prompt) for prompt in given):
            raise ValueError(f"guidance {decoding.guidance} strengthens the prompt, and there is none")
        return Request(tokens, length, decoding)

    def prompt_tokens(self, prompt: Prompt, *, chat: bool = False) -> list[int]:
        """Return the tokens of a prompt; token ids are taken as they are.

        An empty text becomes BOS: a base cannot distinguish positions without a visible token (docs/decisions.md).
        """
        if chat:
            if self.chat is None:
                raise ValueError("this model has no chat template: it is not tuned for chat")
            tokens = self.chat.tokens(cast("str | Sequence[Message]", prompt))
        elif isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
            if self.adds_bos or not tokens:
                tokens = [self.tokenizer.special.bos, *tokens]
        else:
            tokens = list(cast("Sequence[int]", prompt))
        return self._checked(tokens)

    def _checked(self, tokens: list[int]) -> list[int]:
        vocab_size = self.network.config.vocab_size
        if outside := [token for token in tokens if not 0 <= token < vocab_size]:
            raise ValueError(f"a prompt has token {outside[0]}, outside a vocabulary of {vocab_size}")
        if self.mask_id in tokens:
            raise ValueError("a prompt contains the mask token, which stands for text that is not there yet")
        return tokens

    def _canvas(self, prompts: Sequence[list[int]], length: int) -> Canvas:
        tokens = torch.tensor([[*prompt, *[self.mask_id] * length] for prompt in prompts], device=self.device)
        return Canvas(tokens, self.mask_id, self.network.config.eos_id)

    # ------------------------------------------------------------ answers

    @cached_property
    def _ends(self) -> set[int]:
        """The tokens that end an answer."""
        ends = {self.tokenizer.id_of(name) for name in ANSWER_ENDS} | {self.network.config.eos_id}
        return {end for end in ends if end is not None}

    def text_of(self, answer: Sequence[int]) -> str:
        """Return the text of an answer, up to the first token that ends it."""
        return self.tokenizer.decode(list(takewhile(lambda token: token not in self._ends, answer)))

    def _generation(self, samples: Samples, seconds: float, flop_nfes: Sequence[float]) -> Generation:
        return Generation(
            texts=[self.text_of(answer) for answer in samples.tokens.tolist()],
            tokens=samples.tokens,
            registers=None,
            cost=samples.cost,
            costs=samples.costs,
            nfe=mean_price(self.nfe, samples.costs),
            flop_nfe=fmean(flop_nfes),
            seconds=seconds,
        )

    def nfe(self, cost: Cost) -> float:
        """Return the cost in the paper's unit: calls of the network."""
        return float(cost.demasker_calls)

    # ------------------------------------------------------------ device

    @property
    def device(self) -> torch.device:
        return self.network.embed.weight.device

    @property
    def mask_id(self) -> int:
        return self.network.config.mask_id

    @cached_property
    def engine(self) -> Engine:
        """Return the engine; on CUDA it records calls as graphs and replays them."""
        return engine_for(self.device, compiled=self.compiled)

    def affordable_batch(self, length: int, *, prompt_length: int = 0) -> int:
        return affordable_batch(self.network.config, length, self.device, prefix=prompt_length)


def _as_list(prompts: Prompts) -> Sequence[Prompt]:
    if isinstance(prompts, int):
        return [""] * prompts
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping)):  # one text, or one conversation
        return [cast("Prompt", prompts)]
    if prompts and isinstance(prompts[0], int):
        raise ValueError("these are the token ids of one prompt: put them into a list of prompts")
    return cast("Sequence[Prompt]", prompts)


def _in_order(batches: Iterable[tuple[list[int], Generation]]) -> Iterator[str]:
    """Yield the texts of numbered batches in the order of their numbers."""
    finished: dict[int, str] = {}
    wanted = 0
    for numbers, generation in batches:
        finished.update(zip(numbers, generation.texts, strict=True))
        while wanted in finished:
            yield finished.pop(wanted)
            wanted += 1


# ---------------------------------------------------------------- folders


def _checkpoint_parts(folder: Path) -> dict[str, Any]:
    """Read a public checkpoint without its weights. config.json, not the tokenizer, says which ids are special."""
    check_checkpoint(folder, chat=False)
    shape, config = base_config(folder), TokenizerConfig.read(folder)
    tokenizer = load_tokenizer(folder, mask=shape.mask_id, eos=shape.eos_id, pad=shape.pad_id)
    return {
        "tokenizer": tokenizer,
        "settings": BaseSettings.of_checkpoint(folder),
        "chat": None if config.template is None else Chat(tokenizer, config.template, config.names),
        "adds_bos": config.adds_bos or tokenizer.adds_bos,
    }


def _own_parts(path_or_name: StrPath) -> dict[str, Any]:
    """Read one of this project's models without its weights."""
    folder = model_folder(path_or_name)
    if not (folder / BASE_FOLDER).is_dir():
        raise ValueError(f"the model {str(path_or_name)!r} has no base of its own")
    return {
        "tokenizer": Tokenizer.load(folder / TOKENIZER_FILE),
        "settings": BaseSettings.of(read_settings(folder / SETTINGS_FILE)),
        "adds_bos": True,  # as in training
    }
