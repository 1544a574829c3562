"""Any nesting of transformations reads and writes variables as plain functions of them would."""

import os
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

import replicax as rx
from replicax.core.errors import TraceError
from tests.engine.nesting import MAX_SIZE, Library, Program, Step, expected, programs, size

# The same 15 programs in each run, or as many new ones as asked for.
NUM_ASKED = os.environ.get("REPLICAX_TEST_PROGRAMS")
NUM_PROGRAMS = int(NUM_ASKED or 15)
STARTS = (0.7, 0.3, 1.1)

# What JAX cannot do, or what has no answer; the library says so with the name of the variable.
REFUSED = (
    r"variable 'v\d'.* is (assigned inside a branch of a loop that is differentiated"
    r"|differentiated, and (read inside jax\.custom_jvp|assigned inside a loop)"
    r"|read in a rule of jax\.custom_jvp|read inside jax\.custom_jvp)"
)

SMALL_PROGRAMS = programs().filter(lambda program: size(program) <= MAX_SIZE)
READ, WRITE = Step("read", 1), Step("write", 1, 0)
REPLAYED: Program = (Step("vjp", 1, 0, (Step("checkpoint", body=(READ,)),)),)
IN_ROUNDS: Program = (Step("grad", body=(Step("scan", body=(READ, WRITE, READ)),)),)
BESIDE_ROWS: Program = (Step("rows", body=(READ,)), Step("fori", body=(READ, WRITE)))
MAPPED: Program = (Step("vmap", body=(Step("cond", 0, 0, (READ,)),)), Step("solve", body=(READ,)))
BRANCH = Step("cond", body=(WRITE,))
BRANCH_IN_LOOP: Program = (Step("grad", body=(Step("scan", body=(BRANCH,)),)),)


def make_variables(strategy):
    kinds = [
        {"aggregation": rx.VariableAggregation.MEAN},
        {"aggregation": rx.VariableAggregation.ONLY_FIRST_REPLICA},
        {
            "aggregation": rx.VariableAggregation.SUM,
            "synchronization": rx.VariableSynchronization.ON_READ,
        },
    ]
    with strategy.scope():
        pairs = zip(STARTS, kinds, strict=True)
        return [rx.Variable(value, name=f"v{i}", **kind) for i, (value, kind) in enumerate(pairs)]


def meets_inside(program: Program) -> bool:
    """Whether replicas would have to meet inside a transformation: eager ones cannot."""
    return any(step.kind != "write" and step.writes() for step in program)


@pytest.mark.slow
@settings(
    max_examples=NUM_PROGRAMS,
    derandomize=NUM_ASKED is None,
    phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than a test may
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    programs().filter(lambda program: size(program) <= MAX_SIZE), st.integers(1, 3), st.booleans()
)
@example(REPLAYED, 2, True)
@example(IN_ROUNDS, 2, False)
@example(BESIDE_ROWS, 3, True)
@example(MAPPED, 2, True)
@example(BRANCH_IN_LOOP, 2, False)
@pytest.mark.filterwarnings("ignore:variable .* is read inside")
def test_a_nesting_means_what_a_plain_function_would(program, num_replicas, uneven):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    batch = np.linspace(-1.0, 1.0, 2 * num_replicas - uneven, dtype=np.float32)
    components = [batch[i : i + 2] for i in range(0, 2 * num_replicas, 2)]
    for how in ("compiled", "inside", "eager"):
        if how == "eager" and meets_inside(program):
            continue
        variables = make_variables(strategy)
        values = [list(map(jnp.float32, STARTS)) for _ in components]

        def replica_fn(rows, variables=variables):
            machine = Library(rows, variables, rx.grad)
            return machine.run(program, jnp.sin(rows.sum()))

        inner = rx.function(replica_fn) if how == "compiled" else replica_fn
        step = lambda rows, fn=inner: strategy.run(fn, args=(rows,))  # noqa: E731
        step = rx.function(step) if how == "inside" else step
        for _ in range(2):
            wanted = expected(program, components, values)
            try:
                result = step(strategy.distribute_batch(batch))
            except TraceError as error:
                if not re.search(REFUSED, str(error)):
                    raise
                event("refused")
                break
            got = list(map(float, strategy.experimental_local_results(result)))
            np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5, err_msg=how)
            for i, variable in enumerate(variables):
                copies = strategy.experimental_local_results(variable)
                np.testing.assert_allclose(
                    [float(copy.value) for copy in copies],
                    [float(row[i]) for row in values],
                    rtol=2e-4,
                    atol=2e-5,
                    err_msg=f"variable {i}, {how}",
                )
