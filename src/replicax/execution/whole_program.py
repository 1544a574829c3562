"""Lets lower layers compile a whole Python function into one program.

How that is done is known only above, in `functions`, which registers itself
here when it is imported. `strategies.multi_step` is the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Site(Protocol):
    """The compiled programs of one Python function, by the types of its arguments."""

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `fn` as one program.

        Raises:
            HostLoopRequired: If it must run as Python.
        """
        ...


class _Compiler:
    make_site: list[Callable[[], Site]] = []  # noqa: RUF012
    is_off: list[Callable[[], bool]] = []  # noqa: RUF012


def provide_compiler(make_site: Callable[[], Site], is_off: Callable[[], bool]) -> None:
    """Tells how to compile; called once, by `functions.function`.

    Args:
        make_site: Gives a site for one function, which comes with every call.
        is_off: Whether functions run as plain Python at the moment.
    """
    _Compiler.make_site[:] = [make_site]
    _Compiler.is_off[:] = [is_off]


def new_site() -> Site:
    """A site for one function."""
    return _Compiler.make_site[0]()


def is_off() -> bool:
    """Whether everything runs as plain Python: ``run_functions_eagerly(True)``."""
    return _Compiler.is_off[0]()
