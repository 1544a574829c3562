"""Checks that what replicas count in a metric may be added up.

Keras adds up the parts that replicas have of a metric's variables, which is what
``add_variable(aggregation="sum")`` says, and what it says if nothing is said. The sum is right if
an update adds something to each variable, and wrong without a word if it keeps a maximum. So
the first update of a metric of the user's own is traced, and its program must add.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from replicax.core.enums import VariableAggregation
from replicax.core.errors import ContextError, VariableError
from replicax.integrations.keras import internals, shares
from replicax.integrations.keras.variables import StrategyVariable, is_on_read
from replicax.jax_internals.programs import Literal, open_jaxpr, scan_counts, sub_jaxprs

_watched: weakref.WeakSet[type] = weakref.WeakSet()  # classes
_checked: weakref.WeakSet[Any] = weakref.WeakSet()  # metrics

_SAME = {"convert_element_type", "copy", "copy_p", "reshape", "optimization_barrier"}
_ADDS = {"add", "add_any", "sub", "scatter-add"}
_CALLS = {"jit", "call", "closed_call", "eval_jaxpr", "remat2", "checkpoint", "custom_jvp_call"}

_NOTHING = "nothing of the state"
_OTHERWISE = "the state, and not only by addition"
_Kind = str | int
"""What a value has of the state: one of the two above, or (by its number) a variable's value plus
something else."""


def watch(metric: Any) -> None:
    """Has the first update of each metric of this class checked, unless Keras has written it."""
    owner = internals.defining_class(type(metric), "update_state")
    original = vars(owner)["update_state"]
    if owner.__module__.partition(".")[0] == "keras" or owner in _watched:
        return

    @functools.wraps(original)
    def update_state(metric: Any, *args: Any, **kwargs: Any) -> Any:
        if metric not in _checked and shares.is_one_of_many():
            _require_additive(metric, functools.partial(original, metric, *args, **kwargs))
            _checked.add(metric)
        return original(metric, *args, **kwargs)

    owner.update_state = update_state  # pyright: ignore[reportAttributeAccessIssue]
    _watched.add(owner)


def _require_additive(metric: Any, update: Callable[[], Any]) -> None:
    summed = [variable for variable in metric.variables if _is_summed(variable)]
    if not summed:
        return

    def updated(values: list[Any]) -> list[Any]:
        mapping = list(zip(summed, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            update()
        return [scope.get_current_value(variable) for variable in summed]

    try:
        jaxpr = jax.make_jaxpr(updated)([variable.value for variable in summed]).jaxpr
    except ContextError:
        return  # in an eager run nothing can be traced that communicates; `fit` compiles the step
    for number, kind in enumerate(_kinds(jaxpr, range(len(summed)))):
        if kind != number:
            raise VariableError(
                f"update_state of metric {metric.name!r}, a {type(metric).__name__}, assigns "
                f"variable {summed[number].name!r} something else than its value plus what the "
                "batch adds. Each replica sees a part of the batch, and the parts are added up, as "
                "add_variable(aggregation='sum') says, which is the default: the figure would be "
                "wrong. Combine the replicas in update_state: `context = replicax."
                "get_replica_context()` and, if it is not None, `context.all_gather(values, "
                "axis=0)`. Create the variable with aggregation='only_first_replica'."
            )


def _is_summed(variable: Any) -> bool:
    return (
        isinstance(variable, StrategyVariable)
        and is_on_read(variable)
        and variable.replicax_variable.aggregation is VariableAggregation.SUM
    )


def _kinds(jaxpr: Any, given: Sequence[_Kind]) -> list[_Kind]:
    """What the results of a program have of the state, given what its arguments have of it."""
    env: dict[Any, _Kind] = dict(zip(jaxpr.invars, given, strict=True))

    def kind_of(atom: Any) -> _Kind:
        return _NOTHING if isinstance(atom, Literal) else env.get(atom, _NOTHING)

    for eqn in jaxpr.eqns:
        kinds = _of_equation(eqn, [kind_of(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, kinds, strict=True))
    return [kind_of(atom) for atom in jaxpr.outvars]


def _of_equation(eqn: Any, kinds: list[_Kind]) -> list[_Kind]:
    name, count = eqn.primitive.name, len(eqn.outvars)
    if all(kind == _NOTHING for kind in kinds):
        return [_NOTHING] * count
    if name in _SAME:
        return kinds
    if name in _ADDS:
        first, *others = kinds
        if name in ("add", "add_any") and first == _NOTHING:
            first, others = kinds[1], [first]
        return [first if all(other == _NOTHING for other in others) else _OTHERWISE]
    if name == "select_n":
        return [_joined(kinds[1:]) if kinds[0] == _NOTHING else _OTHERWISE]
    if name in _CALLS:
        (body,) = sub_jaxprs(eqn.params)[:1]
        return _kinds(open_jaxpr(body), kinds)
    if name == "cond" and kinds[0] == _NOTHING:
        rows = [_kinds(open_jaxpr(branch), kinds[1:]) for branch in eqn.params["branches"]]
        return [_joined(column) for column in zip(*rows, strict=True)]
    if name == "scan":
        return _of_scan(eqn, kinds)
    return [_OTHERWISE] * count


def _of_scan(eqn: Any, kinds: list[_Kind]) -> list[_Kind]:
    """A loop adds to what it carries if each round does."""
    start, carried = scan_counts(eqn)
    outs = _kinds(open_jaxpr(eqn.params["jaxpr"]), kinds)
    before = kinds[start : start + carried]
    if outs[:carried] != before:
        return [_OTHERWISE] * len(outs)
    return [*before, *(kind if kind == _NOTHING else _OTHERWISE for kind in outs[carried:])]


def _joined(kinds: Sequence[_Kind]) -> _Kind:
    return kinds[0] if all(kind == kinds[0] for kind in kinds) else _OTHERWISE
