"""Where variables are created, when somebody has asked for certain devices."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from replicax.core.typing import Device

_devices: contextvars.ContextVar[tuple[Device, ...] | None] = contextvars.ContextVar(
    "replicax_colocation", default=None
)

_primary: contextvars.ContextVar[Any] = contextvars.ContextVar("replicax_primary", default=None)


@contextlib.contextmanager
def colocated_on(devices: tuple[Device, ...] | None, primary: Any = None) -> Iterator[None]:
    """Asks for variables on `devices`; None lets the strategy choose.

    Args:
        devices: Where.
        primary: The variable that they belong to, if it is one that was named.
    """
    tokens = _devices.set(devices), _primary.set(primary)
    try:
        yield
    finally:
        _devices.reset(tokens[0])
        _primary.reset(tokens[1])


def asked_devices() -> tuple[Device, ...] | None:
    """The devices that new variables should be on, if anybody asked."""
    return _devices.get()


def asked_primary() -> Any:
    """The variable that new variables belong to, if anybody named one."""
    return _primary.get()
