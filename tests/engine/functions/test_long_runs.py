"""Thousands of steps that nobody waits for, on 8 virtual devices, end with the right values.

Every plain training loop is like this. Each runs in a process of its own, once with
devices made by `set_virtual_devices` and once with devices made by XLA_FLAGS, in a
process that never set NPROC and in which JAX had started before Replicax was asked.
"""

import threading

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from tests.backend.fresh_process import run_fresh

SETUPS = {
    "set_virtual_devices": ({}, "rx.set_virtual_devices(8)"),
    "xla_flags": (
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        "assert len(jax.devices()) == 8",
    ),
}


class Counter:
    """A strategy on all devices, a mirrored variable, and steps that add 1 to it."""

    def __init__(self) -> None:
        self.strategy = rx.MirroredStrategy()
        assert self.strategy.num_replicas_in_sync == 8
        with self.strategy.scope():
            self.total = rx.Variable(0.0, aggregation=rx.VariableAggregation.MEAN)

        @rx.function
        def count() -> None:
            self.total.assign_add(1.0)

        @rx.function
        def count_and_return() -> jax.Array:
            self.total.assign_add(1.0)
            return self.total * 2.0

        self.count, self.count_and_return = count, count_and_return


def steps_that_return_values(num_steps: int) -> None:
    counter = Counter()
    for _ in range(num_steps):
        result = counter.strategy.run(counter.count_and_return)
    assert result.values[0] == 2 * num_steps


def steps_that_return_none(num_steps: int) -> None:
    counter = Counter()
    for _ in range(num_steps):
        assert counter.strategy.run(counter.count) is None
    assert counter.total == num_steps


def two_programs_interleaved(num_steps: int) -> None:
    counter, other = Counter(), Counter()
    for _ in range(num_steps // 2):
        counter.strategy.run(counter.count)
        other.strategy.run(other.count_and_return)
    assert counter.total == other.total == num_steps // 2


def eager_and_compiled_mixed(num_steps: int) -> None:
    counter = Counter()
    offset = jnp.zeros(())
    for i in range(num_steps):
        result = counter.strategy.run(counter.count_and_return)
        offset = offset + result.values[i % 8]  # an operation of the user, on one device
        if i % 1000 == 0:
            counter.strategy.run(lambda: counter.total.assign_add(0.0) is None)
    assert counter.total == num_steps


def two_user_threads(num_steps: int) -> None:
    counters = [Counter(), Counter()]

    def work(counter: Counter) -> None:
        for _ in range(num_steps // 2):
            counter.strategy.run(counter.count)

    threads = [threading.Thread(target=work, args=(counter,)) for counter in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [float(counter.total) for counter in counters] == [num_steps // 2] * 2


SCENARIOS = (
    steps_that_return_values,
    steps_that_return_none,
    two_programs_interleaved,
    eager_and_compiled_mixed,
    two_user_threads,
)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_thousands_of_steps_that_nobody_waits_for_finish(scenario, setup, is_full):
    variables, prepare = SETUPS[setup]
    run_fresh(
        f"""
        import jax
        import replicax as rx
        {prepare}
        from tests.engine.functions import test_long_runs
        test_long_runs.{scenario.__name__}({20_000 if is_full else 2_000})
        """,
        timeout=240,
        **variables,
    )
