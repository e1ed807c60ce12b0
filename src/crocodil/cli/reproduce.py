"""`crocodil evaluate`, `crocodil reproduce` and `crocodil report`.

`evaluate` judges one model or any texts, `reproduce` computes all tables and figures, `report` only writes them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crocodil.checkpoints.hub import local_folder
from crocodil.cli import options
from crocodil.cli.measuring import by_file, by_preset, show_costs
from crocodil.cli.root import MEASURE, app, check_installed
from crocodil.pipeline.settings import BUILTIN, read_settings, settings_file
from crocodil.runtime import config
from crocodil.sampling.configs import Decoding, Drawing

if TYPE_CHECKING:
    from crocodil.corpus.pairs import Pairs
    from crocodil.corpus.shards import Corpus
    from crocodil.judges import Evaluator, LanguageModel
    from crocodil.pipeline import Crocodil
    from crocodil.reproduce.context import Context
    from crocodil.reproduce.protocol import Protocol

Data = Annotated[Path | None, typer.Option(help="Corpus. Samples are compared with its held-out programs.")]
JudgeName = Annotated[str, typer.Option(help="Causal language model that computes Gen-PPL and MAUVE.")]
Results = Annotated[Path, typer.Option(help="Folder for rows, figures and the report.")]
RESULTS = Path("results")


@app.command(rich_help_panel=MEASURE)
@options.with_knobs_of(Decoding, Drawing)
def evaluate(
    *,
    model: options.Model = BUILTIN,
    samples: Annotated[
        Path | None, typer.Option(help="Evaluate these texts instead: a .jsonl file with a field text.")
    ] = None,
    method: options.AnyMethod = None,
    knobs: dict[str, Any],
    count: Annotated[int, options.number(config.Count, "Number of texts; MAUVE needs at least 200.")] = 256,
    length: Annotated[
        int, options.number(config.Length, "With --samples: length of the real programs in tokens.")
    ] = 256,
    data: Data = None,
    judge: JudgeName = options.DEFAULT_JUDGE,
    split: Annotated[
        str, options.one_of(options.Split, "Use valid to choose settings and test to report results.")
    ] = "valid",
    seed: options.Seed = 0,
    device: options.Device = None,
) -> None:
    """Evaluate the texts of a model, or texts from a file. Prints one row of JSON."""
    import json

    corpus = _corpus(data, split)
    if samples is None:
        read_settings(settings_file(model))
    from crocodil.reproduce.evaluation import (
        MIN_TEXTS_FOR_MAUVE,
        evaluate_model,
        evaluate_texts,
        read_texts,
        why_no_mauve,
    )
    from crocodil.reproduce.protocol import FULL
    from crocodil.reproduce.store import as_json

    texts = None if samples is None else read_texts(samples)
    evaluator = replace(_evaluator(corpus, (judge,), None, FULL, device), min_texts_for_mauve=MIN_TEXTS_FOR_MAUVE)
    if texts is not None:
        row = evaluate_texts(texts, corpus, evaluator, length=length, split=split)
    else:
        from crocodil.pipeline import Crocodil

        pipe = Crocodil.from_pretrained(model, device=device)
        method = pipe.settings.method_or_own(method)
        row = evaluate_model(
            pipe, corpus, evaluator, method=method, knobs=knobs, count=count, split=split, seed=seed
        )
    if reason := why_no_mauve(row):
        _say(reason)
    typer.echo(json.dumps(as_json(row), ensure_ascii=False))  # JSON has no NaN


@app.command(rich_help_panel=MEASURE)
def reproduce(
    experiments: Annotated[
        list[str],
        typer.Argument(
            parser=options.checked(options.Experiment),
            metavar="EXPERIMENT",
            help="all, or names of experiments.",
        ),
    ],
    preset: Annotated[
        str | None, options.one_of(options.Protocol, "How much to compute. Default: full, as in the paper.")
    ] = None,
    protocol: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the protocol from a file instead of --preset."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR", help="Model folder or name on the hub. Can be repeated, for models of other lengths."
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        options.number(config.Length, "Number of tokens per text. Default: all lengths of the model."),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="For each model, the folder of a base that was trained separately."),
    ] = None,
    data: Data = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="CORPUS", help="Take the test programs from this corpus. Settings are still chosen on --data."
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help=f"Causal language model that computes Gen-PPL and MAUVE. Default: {options.DEFAULT_JUDGE}."
        ),
    ] = None,
    embedder: Annotated[str | None, typer.Option(help="Model that computes BERTScore.")] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="PAIRS", help="For experiment completions: prompts and answers from `corpus pairs`."),
    ] = None,
    causal: Annotated[
        str | None,
        typer.Option(metavar="JUDGE", help="For experiment completions: a causal language model to compare with."),
    ] = None,
    ablation_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="An ablation of the model, e.g. 'without register noise=DIR'."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="Another model to show in the same tables."),
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="For each model, the training run it comes from.")
    ] = None,
    base_run: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="For each model, the training run of its base, if it is another run."),
    ] = None,
    paper_steps: Annotated[
        bool,
        typer.Option(
            "--paper-steps", help="Draw registers in 128 and 32 steps, as in the paper, instead of the model's."
        ),
    ] = False,
    out: Results = RESULTS,
    seed: Annotated[int | None, options.number(config.Seed, "Random seed of all samples. Default: 0.")] = None,
    device: options.Device = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled", help="Compile the networks: slower start, then faster. Last digits may differ."
        ),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Only print the estimated cost, for the networks of --run."),
    ] = False,
) -> None:
    """Compute the tables and figures of the paper and write a report. If stopped, run it again to continue."""
    check_installed("eval", "faiss")
    given = {"preset": preset, "judge": judge, "embedder": embedder, "seed": seed}
    how = by_preset(given, paper_steps) if protocol is None else by_file(protocol, given, paper_steps)
    if estimate:
        show_costs(experiments, how.protocol, run or (), length or ())
        return
    how.check_is_fixed()
    corpus, test_corpus = _corpora(data, test)
    prompts = _pairs(pairs, causal, experiments)
    models = model or [BUILTIN]
    for folder in models:
        read_settings(settings_file(folder))
    bases = [local_folder(folder) for folder in base or ()]
    from crocodil.reproduce.context import Context, with_base
    from crocodil.reproduce.fixed_protocol import check_test_corpus
    from crocodil.reproduce.held_out import corpus_fingerprint

    if how.test_corpus is not None:
        check_test_corpus(how.test_corpus, corpus_fingerprint(test_corpus or corpus))
    named = {
        "ablation-model": _named("ablation-model", ablation_model or ()),
        "compare": _named("compare", compare or ()),
    }
    how.check_compared(named["compare"])
    load = partial(_loaded, device=device, compiled=compiled)
    pipes = [
        with_base(load(folder), _each("base", bases, len(models), index)) for index, folder in enumerate(models)
    ]
    variants, compared = ({name: load(folder) for name, folder in folders.items()} for folders in named.values())
    evaluator = _evaluator(corpus, how.judges, how.embedder, how.protocol, device)
    anchor = None if causal is None else _language_model(causal, device)
    contexts = [
        Context.for_model(
            pipe,
            corpus=corpus,
            test_corpus=test_corpus,
            evaluator=evaluator,
            protocol=how.protocol,
            protocol_digest=how.digest,
            results=out,
            seed=how.seed,
            variants=variants,
            compared=compared,
            training=_training(index, len(pipes), run or (), base_run or ()),
            base=_each("base", bases, len(pipes), index),
            pairs=prompts,
            causal=anchor,
        )
        for index, pipe in _at_lengths(pipes, length or ())
    ]
    _compute(contexts, experiments, protocol, out)


def _loaded(folder: str, *, device: str | None, compiled: bool) -> "Crocodil":
    """Load a model. Its reveal step is not compiled: it would be compiled again for every candidate of a sweep."""
    from crocodil.pipeline import Crocodil

    return replace(Crocodil.from_pretrained(folder, device=device, compiled=compiled), compiled_reveal=False)


def _compute(contexts: "Sequence[Context]", experiments: Sequence[str], protocol: Path | None, out: Path) -> None:
    """Compute the rows of experiments and write the report of all rows that are there."""
    from crocodil.reproduce.experiments import EXPERIMENTS, NAMES, compute_all, read_all
    from crocodil.reproduce.fixed_protocol import check_same_protocol, keep_protocol
    from crocodil.reproduce.report import write_report
    from crocodil.runtime.atomic import locked, remove_unfinished

    with locked(out):
        remove_unfinished(out)
        remove_unfinished(out / "figures")
        for context in contexts:
            check_same_protocol(context.store, EXPERIMENTS)  # a refused run leaves nothing behind
        if protocol is not None:
            keep_protocol(protocol, out)
        compute_all(contexts, NAMES if experiments == ["all"] else experiments, say=_say)
        typer.echo(write_report(read_all(out), out))


@app.command(rich_help_panel=MEASURE)
def report(
    out: Results = RESULTS,
    page: Annotated[
        list[Path] | None,
        typer.Option(
            help="Also write the marked tables of this Markdown file, e.g. a model card. Can be repeated."
        ),
    ] = None,
) -> None:
    """Write the report and its figures again, from the rows stored by `reproduce`."""
    from crocodil.reproduce.experiments import read_all
    from crocodil.reproduce.pages import write_page
    from crocodil.reproduce.report import timed, write_report
    from crocodil.runtime.atomic import locked

    with _from_rows_of(out):
        rows = read_all(out)
        with locked(out):
            typer.echo(write_report(rows, out))
            for file in page or ():
                write_page(file, timed(rows), out)
                typer.echo(file)


def _corpus(data: Path | None, *splits: str) -> "Corpus":
    from crocodil.corpus.shards import Corpus

    if data is None:
        raise ValueError("--data is required: the corpus whose held-out programs are the real text")
    corpus = Corpus(data)
    corpus.require(*splits)
    return corpus


def _corpora(data: Path | None, test: Path | None) -> "tuple[Corpus, Corpus | None]":
    """Return the corpus of the validation programs, and that of the test programs if it is another one."""
    if test is None:
        return _corpus(data, "valid", "test"), None
    return _corpus(data, "valid"), _corpus(test, "test")


def _pairs(folder: Path | None, causal: str | None, experiments: Sequence[str]) -> "Pairs | None":
    from crocodil.corpus.pairs import Pairs

    if folder is not None:
        return Pairs(folder)
    if "completions" in experiments or causal is not None:
        raise ValueError("completions needs --pairs: prompts and answers, as `crocodil corpus pairs` writes them")
    return None


@contextmanager
def _from_rows_of(directory: Path) -> Iterator[None]:
    """Report missing fields and wrong types in stored rows, which anyone can edit, in one line."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"the rows in {directory} are damaged, or of another version ({error!r}): compute them again"
        ) from error


def _evaluator(
    corpus: "Corpus", judges: Sequence[str], embedder: str | None, protocol: "Protocol", device: str | None
) -> "Evaluator":
    from crocodil.corpus.shards import TOKENIZER_FILE
    from crocodil.judges import Evaluator, JudgeLayer, LanguageModel, load_embedder
    from crocodil.runtime.devices import checked_device
    from crocodil.text.tokenizer import Tokenizer

    device = checked_device(device)
    first, *others = (LanguageModel.load(judge, device=device) for judge in judges)
    return Evaluator(
        judge=first,
        other_judges=others,
        judge_layer=JudgeLayer.of(first),
        embedder=None if embedder is None else load_embedder(embedder, device=device),
        tokenizer=Tokenizer.load(corpus.directory / TOKENIZER_FILE),
        mauve_seeds=protocol.mauve_seeds,
        mauve_buckets=protocol.mauve_buckets,
        batch_size=64 if device.startswith("cuda") else 8,
    )


def _language_model(name: str, device: str | None) -> "LanguageModel":
    from crocodil.judges import LanguageModel
    from crocodil.runtime.devices import checked_device

    return LanguageModel.load(name, device=checked_device(device))


def _named(option: str, values: Sequence[str]) -> dict[str, str]:
    """Split the values of an option of the form NAME=DIR."""
    pairs = [value.partition("=") for value in values]
    for name, equals, path in pairs:
        if not (name and equals and path):
            raise ValueError(f"--{option} takes NAME=DIR, not {name + equals + path!r}")
    return {name: path for name, _, path in pairs}


def _training(index: int, num_models: int, runs: Sequence[Path], base_runs: Sequence[Path]) -> "dict[str, dict]":
    from crocodil.training.spent import read_record

    paths = {"run": _each("run", runs, num_models, index), "base": _each("base-run", base_runs, num_models, index)}
    return {name: read_record(path) for name, path in paths.items() if path is not None}


def _each(option: str, paths: Sequence[Path], num_models: int, index: int) -> Path | None:
    """Return the path for one model, or None if the option was not used."""
    if paths and len(paths) != num_models:
        raise ValueError(f"--{option} is given {len(paths)} times for {num_models} models: give one per model")
    return paths[index] if paths else None


def _at_lengths(pipes: "Sequence[Crocodil]", wanted: Sequence[int]) -> "list[tuple[int, Crocodil]]":
    """Return (index of the model, model at one length) for all wanted lengths; all lengths by default."""
    known = sorted({length for pipe in pipes for length in pipe.settings.lengths})
    if unknown := [length for length in wanted if length not in known]:
        raise ValueError(f"no model was trained at length {unknown[0]}: choose from {', '.join(map(str, known))}")
    return [
        (index, pipe.at_length(length))
        for index, pipe in enumerate(pipes)
        for length in pipe.settings.lengths
        if length in (wanted or known)
    ]


def _say(line: str) -> None:
    typer.echo(line, err=True)
