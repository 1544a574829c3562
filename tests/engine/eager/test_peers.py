"""What a meeting of eager replicas leaves behind on each of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.mark.filterwarnings("ignore:variable .* is read inside jax.jit")
def test_after_a_meeting_every_replica_traces_anew_what_has_read_a_variable():
    # It runs on the caller's thread: what is written there must reach the replicas' threads.
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)
    read = jax.jit(lambda: v.value)

    def step():
        seen = [read()]
        rx.get_replica_context().merge_call(lambda strategy: v.assign(5.0))
        seen.append(read())
        v.assign_add(1.0)
        seen.append(read())
        return jnp.stack(seen)

    for start in (1.0, 7.0):
        for seen in strategy.experimental_local_results(strategy.run(step)):
            np.testing.assert_array_equal(seen, [start, 5.0, 7.0])
