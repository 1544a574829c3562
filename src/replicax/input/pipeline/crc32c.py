"""The checksum of TFRecord files: CRC-32C (Castagnoli), masked.

`google-crc32c`, of the extra ``replicax[data]``, computes it; without it a loop over bytes does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord files store it.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc = _implementation()(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ONES


@functools.cache
def _implementation() -> Callable[[bytes], int]:
    try:
        import google_crc32c
    except ModuleNotFoundError:
        return crc32c
    return google_crc32c.value


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes, slowly.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    table, state = _table(), _ONES
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ _ONES


@functools.cache
def _table() -> list[int]:
    table = []
    for state in range(256):
        for _ in range(8):
            state = (state >> 1) ^ (_POLYNOMIAL if state & 1 else 0)
        table.append(state)
    return table
