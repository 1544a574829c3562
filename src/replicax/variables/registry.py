"""The variables that exist now, so that tools can look at all of a strategy's at once.

Holds them weakly: being listed keeps no variable alive. `variables.construction` is
the only writer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from replicax.engine.protocols import StrategyLike
from replicax.engine.storage import Storage

if TYPE_CHECKING:
    from replicax.variables.variable import Variable

_live: weakref.WeakValueDictionary[int, Variable] = weakref.WeakValueDictionary()
_observer: Callable[[Variable], None] | None = None


def observe(observer: Callable[[Variable], None] | None) -> None:
    """Calls `observer` with every new variable, maybe more than once; None ends that.

    There is one at most: `checkpoint.awaiting`, while saved values wait for variables.
    """
    global _observer
    _observer = observer


def register(variable: Variable) -> None:
    """Lists a new variable; listing it again changes nothing."""
    _live[id(variable)] = variable
    if _observer is not None:
        _observer(variable)


def live_variables(strategy: StrategyLike) -> list[Variable]:
    """The variables that `strategy` has created and that are still in use, oldest first.

    Variables whose trace failed before they had a value are left out.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     a, b = rx.Variable(1.0, name="a"), rx.Variable(2.0, name="b")
        >>> [v.name for v in live_variables(strategy)]
        ['a', 'b']
        >>> del a
        >>> [v.name for v in live_variables(strategy)]
        ['b']
    """
    return [
        variable
        for variable in list(_live.values())
        if variable.strategy is strategy and (variable._storage.has_value or variable._storage.lost)
    ]


def owners() -> dict[Storage, Variable]:
    """Each variable of this process by its storage."""
    return {variable._storage: variable for variable in list(_live.values())}
