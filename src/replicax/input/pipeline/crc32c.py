"""The checksum of TFRecord files: CRC-32C (Castagnoli), masked.

A plain loop over bytes would be slower than any disk. The checksum is linear, so a block
of bytes is one table lookup per byte and one XOR over all of them, which NumPy does.
"""

from __future__ import annotations

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78
_BLOCK = 1024
_ONES = 0xFFFFFFFF
_SHORT = 32  # bytes for which calling NumPy takes longer than a loop
_DISTANCES = 256 * np.arange(_BLOCK - 1, -1, -1)


@functools.cache
def _tables() -> np.ndarray:
    """Row k: what a byte adds to the checksum if k bytes follow it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(_POLYNOMIAL), first >> 1)
    tables = np.empty((_BLOCK, 256), np.uint32)
    tables[0] = first
    for k in range(1, _BLOCK):
        tables[k] = first[tables[k - 1] & 0xFF] ^ (tables[k - 1] >> 8)
    return tables


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    if len(data) <= _SHORT:
        return _of_few(data)
    tables = _tables().ravel()
    values = np.frombuffer(data, np.uint8)
    state = _ONES
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        # The checksum so far acts as if it were XORed to the first four bytes of the block.
        head = np.frombuffer((state & _ONES).to_bytes(4, "little"), np.uint8)[: len(block)]
        block = np.concatenate([block[: len(head)] ^ head, block[len(head) :]])
        carried = state >> (8 * len(block)) if len(block) < 4 else 0
        lookups = tables[_DISTANCES[_BLOCK - len(block) :] + block]
        state = int(np.bitwise_xor.reduce(lookups)) ^ carried
    return state ^ _ONES


@functools.cache
def _byte_table() -> list[int]:
    return _tables()[0].tolist()


def _of_few(data: bytes) -> int:
    table = _byte_table()
    state = _ONES
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ _ONES


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord files store it.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ONES
