"""Thousands of steps that nobody waits for, on 8 virtual devices, end with the right values.

Without a bound on what is in flight, a loop like these deadlocks in XLA, which kills the process.
Each loop runs in a process of its own. The engine's part is written by hand:
``jit(shard_map(step))`` with donation and a token.
"""

import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax.backend import devices, runahead
from tests.backend.fresh_process import run_fresh

NUM_DEVICES = 8
NUM_STEPS = 3_000
# Slow steps need fewer. With a limit of 8 and a small pool the first of these hung within 300; the
# second was never seen to hang.
NUM_SLOW_STEPS = {
    "slow_steps_that_fill_a_device_with_eager_operations": 300,
    "transfers_and_replicated_operations_in_between": 200,
}

# A process whose devices Replicax made, and one that made them itself and started JAX with only
# as many threads as devices: what 8 cores or fewer give without NPROC, here on any machine.
SETUPS = {
    "replicax": ({}, "8"),
    "own": ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "8"}, "1"),
}


def make_step(*, donates: bool = True, work: int = 0) -> Callable:
    """A step that adds 1 to a variable and returns (token, (variable, value of replica 0))."""
    mesh = Mesh(np.array(jax.devices()), ("replica",))

    def body(variable):
        extra = 0.0
        if work:
            a = jax.lax.fori_loop(
                0, work, lambda _, a: jnp.tanh(a @ a), jnp.full((64, 64), variable[0] * 1e-9)
            )
            extra = a[0, 0] * 0
        total = jax.lax.psum(1.0 + extra, "replica")
        return jnp.zeros(()), (variable + total / NUM_DEVICES, total)

    specs = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec()}
    mapped = jax.shard_map(body, mesh=mesh, check_vma=False, **specs)
    return jax.jit(mapped, donate_argnums=(0,) if donates else ())


def make_variable() -> jax.Array:
    mesh = Mesh(np.array(jax.devices()), ("replica",))
    return jax.device_put(np.zeros((4,), np.float32), NamedSharding(mesh, PartitionSpec()))


def check(variable: jax.Array, num_steps: int) -> None:
    np.testing.assert_array_equal(variable, np.full((4,), num_steps, np.float32))


def steps_that_return_values(num_steps: int) -> None:
    step, variable, values = make_step(donates=False), make_variable(), []
    for _ in range(num_steps):
        variable, value = runahead.launch(step, variable)
        runahead.settle()
        values.append(value.addressable_data(0))
    check(variable, num_steps)
    assert {float(value) for value in values[:: num_steps // 100]} == {8.0}


def steps_that_only_write_variables(num_steps: int) -> None:
    step, variable = make_step(), make_variable()
    for _ in range(num_steps):
        variable, _ = runahead.launch(step, variable)
        runahead.settle()
    check(variable, num_steps)


def two_programs_in_turn(num_steps: int) -> None:
    steps = make_step(), make_step(work=1)
    variables = [make_variable(), make_variable()]
    for i in range(num_steps):
        variables[i % 2], _ = runahead.launch(steps[i % 2], variables[i % 2])
        runahead.settle()
    for variable in variables:
        check(variable, num_steps // 2)


def eager_operations_in_between(num_steps: int) -> None:
    step, variable, total = make_step(), make_variable(), jnp.zeros(())
    for _ in range(num_steps):
        variable, value = runahead.launch(step, variable)
        runahead.settle()
        total = total + value.addressable_data(0)
    check(variable, num_steps)
    assert float(total) == 8.0 * num_steps


def two_threads(num_steps: int) -> None:
    halves = [steps_that_only_write_variables, steps_that_return_values]
    failures = []

    def run(half):
        try:
            half(num_steps // 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(half,)) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def slow_steps_that_fill_a_device_with_eager_operations(num_steps: int) -> None:
    # 4 programs and 7 operations after each are the 32 that a device takes. A fifth program then
    # waits in the client's thread pool, unless the limit is right for the pool.
    step, variable = make_step(work=50), make_variable()
    for _ in range(num_steps):
        variable, value = runahead.launch(step, variable)
        runahead.settle()
        value = value.addressable_data(0)
        for _ in range(7):
            value = value * 1.5
    check(variable, num_steps)


def transfers_and_replicated_operations_in_between(num_steps: int) -> None:
    step, variable = make_step(work=50), make_variable()
    split = NamedSharding(Mesh(np.array(jax.devices()), ("replica",)), PartitionSpec("replica"))
    for i in range(num_steps):
        variable, value = runahead.launch(step, variable)
        runahead.settle()
        jax.device_put(value.addressable_data(0), jax.devices()[i % NUM_DEVICES])
        batch = jax.device_put(np.ones((16, 4), np.float32), split)
        for _ in range(5):
            value = value + 1.0  # on all devices
        batch * value
    check(variable, num_steps)


def beside_a_thread_of_plain_jax(num_steps: int) -> None:
    # The other thread does not wait either. Its launches need threads of their own in the pool.
    step, variable, done = make_step(work=20), make_variable(), threading.Event()

    def run_plain_jax():
        plain_step, plain_variable = make_step(work=20), make_variable()
        while not done.is_set():
            _, (plain_variable, _) = plain_step(plain_variable)

    other = threading.Thread(target=run_plain_jax)
    other.start()
    try:
        for _ in range(num_steps):
            variable, _ = runahead.launch(step, variable)
            runahead.settle()
        check(variable, num_steps)
    finally:
        done.set()
        other.join()


def exit_with_programs_in_flight(num_steps: int) -> None:
    step, variable = make_step(work=200), make_variable()
    for _ in range(num_steps):
        variable, _ = runahead.launch(step, variable)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        steps_that_return_values,
        steps_that_only_write_variables,
        two_programs_in_turn,
        eager_operations_in_between,
        two_threads,
        slow_steps_that_fill_a_device_with_eager_operations,
        transfers_and_replicated_operations_in_between,
    )
}


def run_here(scenario: str, num_steps: int, setup: str) -> None:
    """What the fresh process does."""
    if setup == "replicax":
        devices.set_virtual_devices(NUM_DEVICES)
    else:
        jax.devices()  # the program used JAX before Replicax could prepare it
    assert len(devices.local_devices()) == NUM_DEVICES
    globals()[scenario](num_steps)
    print("limit", runahead.RUN_AHEAD.limit)


def run(scenario: str, num_steps: int, setup: str) -> None:
    variables, limit = SETUPS[setup]
    output = run_fresh(
        f"""
        from tests.backend.test_long_runs import run_here
        run_here({scenario!r}, {num_steps}, {setup!r})
        """,
        timeout=180,
        **variables,
    )
    assert output.split() == ["limit", limit]


@pytest.mark.quick
@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_long_run_ends(scenario, setup):
    run(scenario, NUM_SLOW_STEPS.get(scenario, NUM_STEPS), setup)


def test_a_run_beside_a_thread_of_plain_jax_ends():
    # With two threads a device, which are enough for one launching thread, this one hangs.
    # In the other setup plain JAX hangs by itself.
    run("beside_a_thread_of_plain_jax", 400, "replicax")


@pytest.mark.parametrize("setup", SETUPS)
def test_a_process_ends_cleanly_with_programs_in_flight(setup):
    run("exit_with_programs_in_flight", 10, setup)
