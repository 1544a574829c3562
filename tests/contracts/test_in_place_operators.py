"""``v += x`` assigns no variable, so every kind of variable refuses it."""

import operator
import re

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

SIGNS = {
    "iadd": "+",
    "isub": "-",
    "imul": "*",
    "itruediv": "/",
    "ifloordiv": "//",
    "imod": "%",
    "ipow": "**",
    "imatmul": "@",
    "iand": "&",
    "ior": "|",
    "ixor": "^",
    "ilshift": "<<",
    "irshift": ">>",
}
INSTEAD = {"+": "v.assign_add(x)", "-": "v.assign_sub(x)"}
SYNC = rx.VariableSynchronization


@pytest.mark.parametrize("name", SIGNS)
@pytest.mark.parametrize("synchronization", [SYNC.ON_WRITE, SYNC.ON_READ])
def test_in_place_operators_are_refused_and_leave_the_variable(strategy, name, synchronization):
    with strategy.scope():
        v = rx.Variable([2, 3], name="w", synchronization=synchronization)
    sign = SIGNS[name]
    instead = INSTEAD.get(sign, f"v.assign(v {sign} x)")
    message = re.escape(f"'{sign}=' on variable 'w' would not assign it")
    for target in (v, *getattr(v, "values", ())):
        with pytest.raises(RuntimeError, match=f"{message}.*Write {re.escape(instead)} to assign"):
            getattr(operator, name)(target, 1)
    copies = strategy.experimental_local_results(v)
    assert all(np.asarray(copy).tolist() == [2, 3] for copy in copies)


def test_in_place_operators_are_refused_in_a_replica(distributed, execute):
    with distributed.scope():
        v = rx.Variable([1.0, 2.0], aggregation=rx.VariableAggregation.SUM)

    def replica_fn():
        held = v
        held += 1.0

    with pytest.raises(RuntimeError, match=r"v\.assign_add\(x\) to assign"):
        execute(distributed, replica_fn)
    assert v.numpy().tolist() == [1.0, 2.0]


def test_an_array_takes_a_variable_in_place():
    v, total = rx.Variable(2.0), jnp.ones(())
    total += v
    assert float(total) == 3.0
