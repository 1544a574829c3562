"""What ``Variable(...)`` does: asks the creators, the innermost first, and at the end the strategy.

What a strategy builds is in `creation`; without one, `Variable` builds itself. Knows no kind of
variable.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

from replicax.backend.partition import Layout
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import VariableError
from replicax.core.typing import Device
from replicax.engine.contexts import stack
from replicax.variables.colocation import asked_devices, asked_primary, colocated_on

Creator = Callable[..., Any]
"""Makes a variable of the keywords of ``Variable``."""

_creators: contextvars.ContextVar[tuple[Creator, ...]] = contextvars.ContextVar(
    "replicax_variable_creators", default=()
)


@contextlib.contextmanager
def variable_creator_scope(variable_creator: Creator) -> Iterator[None]:
    """Lets `variable_creator` see, change or replace every variable creation inside.

    It is called as ``variable_creator(next_creator, **kwargs)``, the innermost
    scope first, once per variable however many replicas there are, and usually
    ends with ``return next_creator(**kwargs)``.

    Args:
        variable_creator: The function.

    Returns:
        A context manager.

    Example:
        >>> import replicax as rx
        >>> def double(next_creator, **kwargs):
        ...     kwargs["initial_value"] = 2 * kwargs["initial_value"]
        ...     return next_creator(**kwargs)
        >>> with rx.variable_creator_scope(double):
        ...     v = rx.Variable(3.0)
        >>> v.numpy()
        array(6., dtype=float32)
    """
    token = _creators.set((*_creators.get(), variable_creator))
    try:
        yield
    finally:
        _creators.reset(token)


def create(
    plain: Creator,
    initial_value: Any = None,
    trainable: bool | None = None,
    *,
    name: str | None = None,
    dtype: Any = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    partition_dimensions: Layout | None = None,
) -> Any:
    """A new variable, as `plain` makes it where no strategy is in force."""
    if initial_value is None:
        raise VariableError(
            "Variable needs an initial_value: an array, a number or a function that returns one."
        )
    options = {
        "trainable": trainable,
        "name": name,
        "dtype": dtype,
        "synchronization": synchronization,
        "aggregation": aggregation,
    }
    if partition_dimensions is not None:  # creators that know nothing of it still serve others
        options["partition_dimensions"] = partition_dimensions
    stack.keep_place()
    entry = stack.top()
    own = plain if entry is None else entry.strategy.extended.create_variable
    # Asked for here: in an eager run the creation itself happens on another thread.
    place = asked_devices(), asked_primary()
    create = functools.partial(_create_once, _creators.get(), place, own, options)
    if entry is None or entry.mode is not stack.Mode.REPLICA:
        return create(initial_value)
    return entry.replica_context._together("the creation of a variable", create, (initial_value,))


def _create_once(
    creators: tuple[Creator, ...],
    place: tuple[tuple[Device, ...] | None, Any],
    creator: Creator,
    options: dict[str, Any],
    initial_value: Any,
) -> Any:
    for outer in creators:
        creator = functools.partial(outer, creator)
    with colocated_on(*place):
        return creator(initial_value=initial_value, **options)
