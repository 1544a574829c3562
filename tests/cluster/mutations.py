"""Replies of a platform with something wrong in them, made from right ones at random."""

import copy
import json
import random
from typing import Any

VALUES = [
    *(
        None,
        True,
        -1,
        0,
        1.5,
        10**40,
        "",
        "x",
        "10.0.0.1",
        "\ud800",
        "a\nb",
        "x" * 5000,
        "9" * 5000,
    ),
    *([], {}, [[]], [None], ["x"], {"name": None}, [{"": []}]),
]
PIECES = [
    *(b"", b"[", b"]", b"{", b"}", b'"', b",", b":", b"-", b"\\ud800", b"\xff", b"\n", b" ", b"\\"),
    *(b"[" * 5000, b'{"a":' * 5000, b"9" * 5000, b"1e999", b"NaN", b"null", b"(x", b"x99999999)"),
    *(b"[0-50000000]", b"[1-9]" * 12, "²".encode()),
]


def mutated_value(rng: random.Random, value: Any) -> Any:
    """`value` with one to three parts replaced, taken out or repeated."""
    result = [copy.deepcopy(value)]
    for _ in range(rng.randint(1, 3)):
        parent, key = _some_place(rng, result)
        action = rng.randrange(6)
        if action == 0 and parent is not result:
            del parent[key]
        elif action == 1 and isinstance(parent[key], list) and parent[key]:
            parent[key] *= rng.randint(2, 5)
        else:
            parent[key] = copy.deepcopy(rng.choice(VALUES))
    return result[0]


def _some_place(rng: random.Random, root: list) -> tuple[Any, Any]:
    parent, key = root, 0
    while isinstance(parent[key], dict | list) and parent[key] and rng.random() < 0.85:
        parent = parent[key]
        key = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    return parent, key


def mutated_text(rng: random.Random, text: str) -> bytes:
    """`text` with one to four pieces of it cut out, repeated or replaced."""
    data = text.encode()
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(data))
        end = min(start + rng.choice([0, 0, 1, 1, 5, 40]), len(data))
        piece = rng.choice([*PIECES, data[start:end] * 2, bytes([rng.randrange(1, 256)])])
        data = data[:start] + piece + data[end:]
    return data


def mutated_json(rng: random.Random, value: Any) -> str:
    """JSON of a mutated value, or mutated JSON of the value."""
    if rng.random() < 0.6:
        return json.dumps(mutated_value(rng, value))
    return mutated_text(rng, json.dumps(value)).decode("utf-8", "surrogateescape")
