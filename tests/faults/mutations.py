"""Damaged copies of files: truncated, with flipped bits, zeroed runs and swapped parts."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path


def truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def zero(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    length = min(draw.choice([1, 8, 64, 512, 4096]), len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


def swap(data: bytes, draw: random.Random) -> bytes:
    size = draw.choice([1, 4, 32, 512, max(1, len(data) // 4)])
    first, second = sorted(draw.randrange(max(1, len(data) - size)) for _ in range(2))
    second = max(second, first + size)
    return (
        data[:first] + data[second : second + size] + data[first + size : second] + data[first : first + size]
        + data[second + size :]
    )  # fmt: skip


def replace_bytes(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 9)):
        changed[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(changed)


def append(data: bytes, draw: random.Random) -> bytes:
    return data + draw.randbytes(draw.choice([1, 64, 4096]))


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [truncate, flip, flip, zero, swap, replace_bytes, append]


def mutate(path: Path, draw: random.Random) -> str:
    """Damage one of the files at or below a path and return a description of the damage."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    files = files or sorted(path.parent.glob(f"{path.name}.*"))  # the path is a checkpoint's prefix
    file = draw.choice([file for file in files if file.stat().st_size])
    mutation, data = draw.choice(MUTATIONS), file.read_bytes()
    file.write_bytes(mutation(data, draw))
    return f"{mutation.__name__} of {file.name}"
