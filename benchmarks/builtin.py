"""How long the built-in model (or --model) takes: seconds per program, and what a draw of registers costs.

    python benchmarks/builtin.py --compiled            # one GPU
    python benchmarks/builtin.py --batch 1             # two CPU cores: OMP_NUM_THREADS=2

Rows of a run can be compared with each other. The method `base` is the demasker without registers; a call of it
takes as long as that of a base of the same shape.
"""

import argparse
from collections.abc import Callable

import torch
from clock import seconds, show, synchronise
from torch.profiler import ProfilerActivity, profile

from crocodil import Crocodil
from crocodil.seeding import Streams

METHODS = ("base", "conthendisc", "conwithindisc")


def time_programs(
    pipe: Crocodil,
    methods: list[str],
    *,
    batch: int,
    length: int,
    calls: tuple[int, ...],
    crops: tuple[int | None, ...],
    repeats: int,
) -> None:
    """The base has every number of calls; guided methods have the first one, and every crop."""
    for method in methods:
        rows = [(number, None) for number in calls] if method == "base" else [(calls[0], crop) for crop in crops]
        for number, crop in rows:
            knobs = {"calls": number, "length": length, "crop": crop}
            taken = seconds(
                lambda method=method, knobs=knobs: pipe.generate(
                    batch, method=method, batch_size=batch, show_progress=False, **knobs
                ),
                repeats,
            )
            show(what="program", method=method, batch=batch, **knobs, seconds=taken / batch)


def time_draws(pipe: Crocodil, *, batch: int, repeats: int) -> None:
    streams = Streams.of("benchmark", samples=range(batch), device=pipe.device)
    show(what="draw", batch=batch, ms=1e3 * seconds(lambda: pipe.draw(streams), repeats))


def profile_all(pipe: Crocodil, methods: list[str], *, calls: int) -> None:
    """Print the kernels of a draw for one program, and of one program by each method."""
    streams = Streams.of("benchmark", samples=range(1), device=pipe.device)
    print_kernels("draw", lambda: pipe.draw(streams))
    for method in methods:
        print_kernels(
            method, lambda method=method: pipe.generate(1, method=method, calls=calls, show_progress=False)
        )


def print_kernels(name: str, work: Callable[[], object]) -> None:
    """Print what takes most time on the GPU, or on the CPU if there is none."""
    is_cuda = torch.cuda.is_available()
    work()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=kinds) as found:
        work()
        synchronise()
    key = "cuda_time_total" if is_cuda else "cpu_time_total"
    print(name, found.key_averages().table(sort_by=key, row_limit=20, max_name_column_width=60), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin", help="a model folder")
    # Blocks are compiled for the first shape that they see: a method may be faster if it is timed alone.
    parser.add_argument("--method", choices=METHODS, nargs="*", default=list(METHODS))
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--length", type=int, nargs="*", default=[256, 512])
    parser.add_argument("--calls", type=int, nargs="*", default=[16, 64, 256])
    parser.add_argument("--crop", type=int, nargs="*", default=[], help="also time guided methods with this crop")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a draw and of a program")
    options = parser.parse_args()
    pipe = Crocodil.from_pretrained(options.model, compiled=options.compiled)
    is_cuda = pipe.device.type == "cuda"
    show(
        device=torch.cuda.get_device_name() if is_cuda else "cpu", threads=torch.get_num_threads(),
        dtype=str(next(pipe.demasker.parameters()).dtype), torch=torch.__version__, compiled=options.compiled,
    )  # fmt: skip
    for batch in options.batch:
        time_draws(pipe, batch=batch, repeats=10 * options.repeats)
    for length in options.length:
        for batch in options.batch:
            calls = tuple(min(number, length) for number in options.calls)
            time_programs(
                pipe, options.method, batch=batch, length=length, calls=calls, crops=(None, *options.crop),
                repeats=options.repeats,
            )  # fmt: skip
    if options.profile:
        profile_all(pipe, options.method, calls=options.calls[0])


if __name__ == "__main__":
    main()
