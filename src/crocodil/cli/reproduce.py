"""`crocodil reproduce`, all tables and figures in one report; `crocodil evaluate`, one setting or any texts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crocodil.cli import options
from crocodil.cli.root import app
from crocodil.pipeline.settings import BUILTIN, SETTINGS_FILE, Method, model_folder, read_settings
from crocodil.runtime import config

if TYPE_CHECKING:
    from crocodil.corpus.shards import Corpus
    from crocodil.judges import Evaluator
    from crocodil.pipeline import Crocodil
    from crocodil.reproduce.protocol import Protocol

Data = Annotated[Path | None, typer.Option(help="The corpus: its held-out programs are what real text is.")]
JudgeName = Annotated[str, typer.Option(help="A causal language model, for Gen-PPL and MAUVE.")]
JUDGE = "smollm2-135m"


@app.command()
def reproduce(
    experiments: Annotated[
        list[str],
        typer.Argument(
            parser=options.checked(options.Experiment),
            metavar="EXPERIMENT",
            help="all; some by name; or report, from the files alone.",
        ),
    ],
    preset: Annotated[str, options.one_of(options.Protocol, "full is the paper's protocol.")] = "full",
    model: Annotated[list[str] | None, typer.Option(help="A model folder; several of different lengths.")] = None,
    length: Annotated[
        list[int] | None, options.number(config.Length, "Of the canvases; all that the model was trained on.")
    ] = None,
    base: Annotated[
        list[Path] | None,
        typer.Option(help="For each model a base that was trained apart, as `save_model` wrote it."),
    ] = None,
    data: Data = None,
    judge: JudgeName = JUDGE,
    embedder: Annotated[str | None, typer.Option(help="A model of token embeddings, for BERTScore.")] = None,
    ablation_model: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR: a model trained otherwise, 'without register noise' say.")
    ] = None,
    run: Annotated[list[Path] | None, typer.Option(help="The run of each model: how it was trained.")] = None,
    base_run: Annotated[list[Path] | None, typer.Option(help="And that of its base, where it is another.")] = None,
    paper_steps: Annotated[
        bool,
        typer.Option("--paper-steps", help="The priors take the paper's 128 and 32 steps, not the model's own."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Rows, figures and the report.")] = Path("results"),
    seed: options.Seed = 0,
    device: options.Device = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="A minute at first, then faster; some last digits differ.")
    ] = False,
) -> None:
    """Compute the paper's tables and figures anew, and write one report. Stopped, it goes on where it was."""
    from crocodil.runtime.atomic import locked, remove_unfinished

    if experiments == ["report"]:
        from crocodil.reproduce.experiments import read_all
        from crocodil.reproduce.report import write_report

        with _from_rows_of(out):
            rows = read_all(out)
            with locked(out):
                typer.echo(write_report(rows, out))
        return
    _check_tools()
    corpus = _corpus(data, "valid", "test")
    for one in model or [BUILTIN]:
        read_settings(model_folder(one) / SETTINGS_FILE)
    from crocodil.pipeline import Crocodil
    from crocodil.reproduce.context import Context, with_base
    from crocodil.reproduce.experiments import NAMES, compute_all
    from crocodil.reproduce.protocol import protocol_named
    from crocodil.reproduce.report import write_report

    protocol = protocol_named(preset)
    if paper_steps:
        protocol = protocol.with_paper_steps()
    pipes = [Crocodil.from_pretrained(one, device=device, compiled=compiled) for one in model or ["builtin"]]
    pipes = [with_base(pipe, _each("base", base or (), len(pipes), place)) for place, pipe in enumerate(pipes)]
    # Their blocks stay compiled. What a call reveals would be compiled anew for every candidate of a sweep.
    pipes = [replace(pipe, compiled=False) for pipe in pipes]
    variants = {name: Crocodil.from_pretrained(path, device=device) for name, path in _named(ablation_model or ())}
    evaluator = _evaluator(corpus, judge, embedder, protocol, device)
    contexts = [
        Context.for_model(
            pipe,
            corpus=corpus,
            evaluator=evaluator,
            protocol=protocol,
            results=out,
            seed=seed,
            variants=variants,
            training=_training(place, len(pipes), run or (), base_run or ()),
            base=_each("base", base or (), len(pipes), place),
        )
        for place, pipe in _at_lengths(pipes, length or ())
    ]
    with locked(out):
        for folder in (out, out / "figures"):
            remove_unfinished(folder)
        results = compute_all(contexts, NAMES if experiments == ["all"] else experiments, say=_say)
        typer.echo(write_report(results, out))


@app.command()
def evaluate(
    model: Annotated[str, typer.Option(help="A model folder, or builtin.")] = "builtin",
    samples: Annotated[Path | None, typer.Option(help="Judge these texts instead: rows with a text.")] = None,
    method: options.MethodName = Method.CON_WITHIN_DISC,
    calls: options.Calls = None,
    temperature: options.Temperature = None,
    rule: options.Rule = None,
    count: Annotated[int, options.number(config.Count, "How many texts; MAUVE takes 200 at least.")] = 256,
    length: Annotated[int, options.number(config.Length, "With --samples: of real programs, in tokens.")] = 256,
    data: Data = None,
    judge: JudgeName = JUDGE,
    split: Annotated[str, options.one_of(options.Split, "valid to choose by, test to report.")] = "valid",
    seed: options.Seed = 0,
    device: options.Device = None,
) -> None:
    """Judge what `generate` writes with a model, or texts from any other model; prints one row of JSON."""
    import json

    corpus = _corpus(data, split)
    if samples is None:
        read_settings(model_folder(model) / SETTINGS_FILE)
    from crocodil.reproduce.evaluation import (
        MIN_TEXTS_FOR_MAUVE,
        evaluate_model,
        evaluate_texts,
        read_texts,
        why_no_mauve,
    )
    from crocodil.reproduce.protocol import FULL

    if samples is not None:
        texts = read_texts(samples)
        evaluator = replace(_evaluator(corpus, judge, None, FULL, device), min_texts_for_mauve=MIN_TEXTS_FOR_MAUVE)
        row = evaluate_texts(texts, corpus, evaluator, length=length, split=split)
    else:
        from crocodil.pipeline import Crocodil

        pipe = Crocodil.from_pretrained(model, device=device)
        evaluator = replace(_evaluator(corpus, judge, None, FULL, device), min_texts_for_mauve=MIN_TEXTS_FOR_MAUVE)
        row = evaluate_model(
            pipe,
            corpus,
            evaluator,
            method=method,
            calls=calls,
            temperature=temperature,
            rule=rule,
            count=count,
            split=split,
            seed=seed,
        )
    if reason := why_no_mauve(row):
        _say(reason)
    typer.echo(json.dumps(row, ensure_ascii=False))


def _corpus(data: Path | None, *splits: str) -> "Corpus":
    from crocodil.corpus.shards import Corpus

    if data is None:
        raise ValueError("--data is needed: the corpus whose held-out programs are what real text is")
    corpus = Corpus(data)
    corpus.require(*splits)
    return corpus


@contextmanager
def _from_rows_of(directory: Path) -> Iterator[None]:
    """Rows are plain JSON that anybody may have edited: what lacks a field, or holds another type, is one line."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"the rows in {directory} are damaged, or of another version ({error!r}): compute them anew"
        ) from error


def _evaluator(
    corpus: "Corpus", judge: str, embedder: str | None, protocol: "Protocol", device: str | None
) -> "Evaluator":
    from crocodil.corpus.shards import TOKENIZER_FILE
    from crocodil.judges import Evaluator, LanguageModel, TextEncoder
    from crocodil.runtime.devices import checked_device, default_device
    from crocodil.text.tokenizer import Tokenizer

    where = checked_device(device or default_device())
    return Evaluator(
        judge=LanguageModel.load(judge, device=where),
        embedder=None if embedder is None else TextEncoder.load(embedder, device=where),
        tokenizer=Tokenizer.load(corpus.directory / TOKENIZER_FILE),
        mauve_seeds=protocol.mauve_seeds,
        mauve_buckets=protocol.mauve_buckets,
        batch_size=64 if where.startswith("cuda") else 8,
    )


def _named(options: Sequence[str]) -> list[tuple[str, str]]:
    """NAME=DIR."""
    pairs = [option.partition("=") for option in options]
    for name, equals, path in pairs:
        if not (name and equals and path):
            raise ValueError(f"--ablation-model takes NAME=DIR, not {name + equals + path!r}")
    return [(name, path) for name, _, path in pairs]


def _training(place: int, num_models: int, runs: Sequence[Path], base_runs: Sequence[Path]) -> "dict[str, dict]":
    from crocodil.training.run_config import read_run_file

    found = {"run": _each("run", runs, num_models, place), "base": _each("base-run", base_runs, num_models, place)}
    return {name: read_run_file(path) for name, path in found.items() if path is not None}


def _each(option: str, paths: Sequence[Path], num_models: int, place: int) -> Path | None:
    """That of one model; None where the option was not used."""
    if paths and len(paths) != num_models:
        raise ValueError(
            f"--{option} {len(paths)} times for {num_models} models: name one for each, in their order"
        )
    return paths[place] if paths else None


def _at_lengths(pipes: "Sequence[Crocodil]", wanted: Sequence[int]) -> "list[tuple[int, Crocodil]]":
    """Every model on its own at each of its lengths that is wanted, all by default; with its place."""
    known = sorted({length for pipe in pipes for length in pipe.settings.lengths})
    if unknown := [length for length in wanted if length not in known]:
        raise ValueError(f"no model was trained at length {unknown[0]}: there is {', '.join(map(str, known))}")
    return [
        (place, pipe.at_length(length))
        for place, pipe in enumerate(pipes)
        for length in pipe.settings.lengths
        if length in (wanted or known)
    ]


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _check_tools() -> None:
    """At once, not after minutes of sampling."""
    if missing := [name for name in ("faiss", "rapidfuzz") if find_spec(name) is None]:
        raise ValueError(f"{' and '.join(missing)} not found: pip install 'crocodil[eval]'")
