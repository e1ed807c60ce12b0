"""Damage values, JSON, bytes and files. All randomness comes from the given generator."""

import copy
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 10**9, 2**31, 2**63, 10**30, -(2**63), 0.0, -0.5, 0.5, 1.5, 1e308, 1e-45,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "4", "nan", "../..", "/", "\x00", "\udcff", "[red]",
    "a\nb", "x" * 5000, [], [[]], [None], [1, 2], ["x"], {}, {"x": 1}, {"": None},
]  # fmt: skip


def nested(depth: int) -> str:
    """Return JSON that is too deep for a recursive reader."""
    return "[" * depth + "]" * depth


# ---------------------------------------------------------------- JSON


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Return the paths of all values inside a JSON value."""
    inner: list[tuple] = []
    if isinstance(value, dict):
        inner = [place for name, one in value.items() for place in places(one, (*path, name))]
    elif isinstance(value, list):
        inner = [place for number, one in enumerate(value[:20]) for place in places(one, (*path, number))]
    return [path, *inner]


def mutated_json(random: Random, value: Any) -> Any:
    """Return a copy in which one value is deleted, added, or changed in type or size."""
    value = copy.deepcopy(value)
    path = random.choice(places(value))
    if not path:
        return random.choice([*JUNK, [value], {"value": value}])
    owner = value
    for step in path[:-1]:
        owner = owner[step]
    last, old = path[-1], owner[path[-1]]
    match random.choice(("delete", "add", "junk", "junk", "junk", "rescale", "rescale", "wrap", "copy")):
        case "delete":
            del owner[last]
        case "add" if isinstance(owner, dict):
            owner[random.choice(["x", "", "format", f"{last}2", "num_layers"])] = random.choice(JUNK)
        case "rescale" if isinstance(old, int | float) and not isinstance(old, bool):
            owner[last] = random.choice(
                [-old, old + 1, old - 1, old * 2, old * 1000, old / 2, old // 2, old * 10**9]
            )
        case "wrap":
            owner[last] = random.choice([[old], {"value": old}, str(old)])
        case "copy":
            owner[last] = copy.deepcopy(_at(value, random.choice(places(value))))
        case _:
            owner[last] = random.choice(JUNK)
    return value


def _at(value: Any, path: tuple) -> Any:
    for step in path:
        value = value[step]
    return value


def mutate_json_file(random: Random, file: Path) -> str:
    """Damage the values of a JSON file, or its text."""
    way = random.choice(("value", "value", "value", "value", "value", "nested", "text"))
    if way == "text":
        return mutate_bytes_of_file(random, file)
    if way == "nested":
        file.write_text(nested(random.choice([900, 100_000])))
        return f"{file.name} is deeply nested"
    value = mutated_json(random, json.loads(file.read_text()))
    file.write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")
    return f"{file.name} is {json.dumps(value)[:300]}"


def mutate_lines_file(random: Random, file: Path) -> str:
    """Damage one row of a .jsonl file, or its text."""
    lines = file.read_text().splitlines()
    if not lines or random.random() < 0.3:
        return mutate_bytes_of_file(random, file)
    number = random.randrange(len(lines))
    way = random.choice(("value", "value", "value", "drop", "twice", "nested", "not an object"))
    if way == "value":
        lines[number] = json.dumps(mutated_json(random, json.loads(lines[number])))
    elif way == "drop":
        del lines[number]
    elif way == "twice":
        lines.insert(number, lines[number])
    else:
        lines[number] = nested(100_000) if way == "nested" else random.choice(["[]", "7", "null", '"x"', "", "{}"])
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogatepass")
    return f"{file.name}, row {number}: {way}"


# ---------------------------------------------------------------- bytes


def flip_bit(random: Random, data: bytes, first: int = 0, last: int | None = None) -> bytes:
    place, bit = random.randrange(first, len(data) if last is None else last), random.randrange(8)
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def mutated_bytes(random: Random, data: bytes) -> tuple[bytes, str]:
    """Return other bytes, and a description of the change."""
    if not data:
        return b"\x00", "a byte more"
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice([1, 4, 64, 1000]))
    ways: dict[str, Callable[[], bytes]] = {
        "a flipped bit": lambda: flip_bit(random, data),
        "another flipped bit": lambda: flip_bit(random, data),
        "a bit flipped near the start": lambda: flip_bit(random, data, 0, min(len(data), 64)),
        "cut short": lambda: data[:start],
        "cut short by a byte": lambda: data[:-1],
        "empty": lambda: b"",
        "longer": lambda: data + random.randbytes(random.choice([1, 8, 1000])),
        "a stretch lost": lambda: data[:start] + data[end:],
        "a stretch of zeros": lambda: data[:start] + bytes(end - start) + data[end:],
        "noise": lambda: random.randbytes(len(data)),
        "a stretch twice": lambda: data[:end] + data[start:],
    }
    way = random.choice(list(ways))
    changed = ways[way]()
    return (changed, way) if changed != data else (data + b"\x00", "a byte more")


def mutate_bytes_of_file(random: Random, file: Path) -> str:
    changed, way = mutated_bytes(random, file.read_bytes())
    file.write_bytes(changed)
    return f"{file.name}: {way}"


# ---------------------------------------------------------------- safetensors


def mutate_safetensors(random: Random, file: Path) -> str:
    """Damage the header of a safetensors file, its data, or any of its bytes."""
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    way = random.choice(("header text", "header value", "data", "data", "bytes"))
    if way == "header text":
        file.write_bytes(flip_bit(random, data, 0, 8 + size))
    elif way == "header value":
        header = json.dumps(mutated_json(random, json.loads(data[8 : 8 + size]))).encode("utf-8", "surrogatepass")
        file.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    elif way == "data" and len(data) > 8 + size:
        file.write_bytes(flip_bit(random, data, 8 + size))
    else:
        return mutate_bytes_of_file(random, file)
    return f"{file.name}: {way} changed"


def mutate_tensors(random: Random, file: Path) -> str:
    """Write NaN or infinity into a tensor of a valid file."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    name = random.choice(sorted(tensors))
    value = random.choice([float("nan"), float("inf"), -float("inf"), 1e30, 0.0])
    tensor = tensors[name].clone()
    if not tensor.is_floating_point():
        return mutate_safetensors(random, file)
    if random.random() < 0.5 and tensor.numel():
        tensor.view(-1)[random.randrange(tensor.numel())] = value
    else:
        tensor = torch.full_like(tensor, value)
    save_file({**tensors, name: tensor}, file)
    return f"{file.parent.name}/{file.name}: {name} holds {value}"


# ---------------------------------------------------------------- other kinds of files


class Bomb:
    """Write a pickle that leaves a mark if it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


def replace_file(random: Random, file: Path, mark: Path) -> str:
    """Remove a file, or replace it by a folder, a pipe, a link or a pickle."""
    way = random.choice(("nothing", "a folder", "a pipe", "a link to nothing", "a link to itself", "a pickle"))
    file.unlink()
    if way == "a folder":
        file.mkdir()
    elif way == "a pipe":
        os.mkfifo(file)
    elif way == "a link to nothing":
        file.symlink_to(file.parent / "nowhere")
    elif way == "a link to itself":
        file.symlink_to(file)
    elif way == "a pickle":
        file.write_bytes(pickle.dumps(Bomb(mark)))
    return f"{file.name} replaced by {way}"
