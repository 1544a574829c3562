"""Permutations of whole numbers that are computed, not drawn.

A permutation is a function of its size and seed: the same on every machine and in every
version, whatever random generators do. Those of moderate size are an order by hashes.
Larger ones need no memory: a Feistel network permutes the next power of four, and what
falls outside the size goes through it again. (Grain's own takes some ten microseconds for
an index, and gives neighbouring seeds the same order.)
"""

from __future__ import annotations

import functools

import numpy as np

_SORTED = 1 << 16  # up to this size the whole order is kept, for a few windows
_BLOCK = 1024  # numbers that are looked up one by one are computed together
_ROUNDS = 6
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed_seed(*parts: int) -> int:
    """One 64-bit seed out of several numbers.

    Example:
        >>> mixed_seed(7, 0) != mixed_seed(7, 1)
        True
    """
    state = 0
    for part in parts:
        state = _hash_of((state + part + _GOLDEN) & _MASK)
    return state


def permuted(places: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Where the permutation of ``range(size)`` puts these places.

    Example:
        >>> sorted(permuted(np.arange(5), 5, seed=1).tolist())
        [0, 1, 2, 3, 4]
    """
    if size <= _SORTED:
        return _sorted_order(size, seed)[places]
    return _feistel(places.astype(np.uint64), size, seed).astype(np.int64)


def permuted_one(place: int, size: int, seed: int) -> int:
    """`permuted` of one place, quick if the places around it are asked for too."""
    if size <= _SORTED:
        return int(_sorted_order(size, seed)[place])
    block, offset = divmod(place, _BLOCK)
    return int(_feistel_block(block, size, seed)[offset])


@functools.lru_cache(maxsize=16)
def _sorted_order(size: int, seed: int) -> np.ndarray:
    keys = _hashes_of(np.arange(size, dtype=np.uint64), seed)
    return np.argsort(keys, kind="stable")


@functools.lru_cache(maxsize=64)
def _feistel_block(block: int, size: int, seed: int) -> np.ndarray:
    first = block * _BLOCK
    places = np.arange(first, min(first + _BLOCK, size), dtype=np.uint64)
    return _feistel(places, size, seed)


def _feistel(values: np.ndarray, size: int, seed: int) -> np.ndarray:
    half = np.uint64(((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    keys = [mixed_seed(seed, number) for number in range(_ROUNDS)]
    outside = np.arange(len(values))
    result = values.copy()
    while len(outside):
        inner = result[outside]
        left, right = inner >> half, inner & mask
        for key in keys:
            left, right = right, left ^ (_hashes_of(right, key) & mask)
        result[outside] = (left << half) | right
        outside = outside[result[outside] >= size]
    return result


def _hash_of(value: int) -> int:
    """The end of splitmix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _hashes_of(values: np.ndarray, key: int) -> np.ndarray:
    """The same, of numbers spread out and moved by a key."""
    mixed = values * np.uint64(_GOLDEN) + np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
