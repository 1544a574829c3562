"""Where variables are created, when somebody has asked for certain devices."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from replicax.core.typing import Device

_devices: contextvars.ContextVar[tuple[Device, ...] | None] = contextvars.ContextVar(
    "replicax_colocation", default=None
)


@contextlib.contextmanager
def colocated_on(devices: tuple[Device, ...] | None) -> Iterator[None]:
    """Asks for variables on `devices`; None lets the strategy choose."""
    token = _devices.set(devices)
    try:
        yield
    finally:
        _devices.reset(token)


def asked_devices() -> tuple[Device, ...] | None:
    """The devices that new variables should be on, if anybody asked."""
    return _devices.get()
