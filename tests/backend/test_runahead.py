"""The bound on programs in flight: how many, in which order, and what an error leaves behind."""

import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax.backend import cpu_client, runahead
from replicax.backend.runahead import MAX_IN_FLIGHT, RunAhead
from tests.backend.fresh_process import run_fresh

NUM_DEVICES = 8


class StandInToken:
    """Stands for a token whose program ends when the test says so."""

    def __init__(self, log, name, error=None):
        self.log, self.name, self.error = log, name, error

    def is_deleted(self):
        return False

    def block_until_ready(self):
        self.log.append(self.name)
        if self.error is not None:
            raise self.error


def stand_in_program(log, name, error=None):
    return lambda *args: (StandInToken(log, name, error), args)


def over_all_devices(body):
    """A program that runs `body` on every device."""
    mesh = Mesh(np.array(jax.devices()), ("replica",))
    specs = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec()}
    return jax.jit(jax.shard_map(body, mesh=mesh, check_vma=False, **specs))


def summing(x):
    return jnp.zeros(()), jax.lax.psum(x, "replica")


def slow(x):
    a = jax.lax.fori_loop(0, 3000, lambda _, a: jnp.tanh(a @ a), jnp.full((64, 64), x))
    return jnp.zeros(()), jax.lax.psum(a[0, 0], "replica")


def test_the_oldest_is_awaited_when_there_is_no_room():
    log = []
    ahead = RunAhead(limit=4)
    for name in range(4):
        assert ahead.launch(stand_in_program(log, name), "x") == ("x",)
    assert (log, ahead.num_in_flight) == ([], 4)
    ahead.launch(stand_in_program(log, 4))
    assert (log, ahead.num_in_flight) == ([0], 4)
    ahead.wait()
    assert (log, ahead.num_in_flight) == ([0, 1, 2, 3, 4], 0)


def test_the_older_half_is_awaited_before_a_program_that_follows_them():
    log = []
    ahead = RunAhead(limit=4)
    for name in range(4):
        ahead.launch(stand_in_program(log, name))
    with ahead.lock:
        ahead.make_room(follows=True)
    assert (log, ahead.num_in_flight) == ([0, 1], 2)


def launch_chain(ahead, tokens):
    """Launches programs of which each uses what the one before it has computed."""
    ahead.begin_chain("mine")
    for token in tokens:
        ahead.tokens.append(token)
        ahead.num_chained += 1


def test_programs_that_use_each_other_are_awaited_by_the_last_of_them():
    log = []
    ahead = RunAhead(limit=4)
    launch_chain(ahead, [StandInToken(log, name) for name in range(4)])
    with ahead.lock:
        ahead.make_room(follows=True)
    assert (log, ahead.num_in_flight) == ([1], 2)
    ahead.wait()
    assert (log, ahead.num_in_flight) == ([1, 2, 3], 0)


def test_one_program_of_another_kind_in_flight_means_that_each_is_awaited():
    log = []
    ahead = RunAhead(limit=4)
    ahead.launch(stand_in_program(log, 0))
    launch_chain(ahead, [StandInToken(log, name) for name in range(1, 4)])
    with ahead.lock:
        ahead.make_room(follows=True)
    assert (log, ahead.num_in_flight) == ([0, 1], 2)
    ahead.launch(stand_in_program(log, 4))
    ahead.wait()
    assert log == [0, 1, 2, 3, 4]


def test_the_error_of_a_chain_is_that_of_its_first_program_that_failed():
    log = []
    ahead = RunAhead(limit=4)
    errors = [RuntimeError("the cause"), RuntimeError("a result"), RuntimeError("a result"), None]
    launch_chain(ahead, [StandInToken(log, name, error) for name, error in enumerate(errors)])
    with ahead.lock, pytest.raises(RuntimeError, match="the cause"):
        ahead.make_room(follows=True)
    assert (ahead.num_in_flight, ahead.num_failures) == (0, 1)
    assert "2 program(s) launched after it failed as well" in str(errors[0].__notes__)


def test_ctrl_c_while_a_chain_is_awaited_loses_no_token():
    log = []
    ahead = RunAhead(limit=4)
    tokens = [StandInToken(log, name) for name in range(4)]
    tokens[1].error = KeyboardInterrupt()
    launch_chain(ahead, tokens)
    with ahead.lock, pytest.raises(KeyboardInterrupt, match=r"^$"):
        ahead.make_room(follows=True)
    assert list(ahead.tokens) == tokens


def test_a_chain_whose_last_token_was_deleted_is_awaited_one_by_one():
    log = []
    ahead = RunAhead(limit=4)
    deleted = jnp.zeros(())
    launch_chain(ahead, [StandInToken(log, 0), deleted, *(StandInToken(log, i) for i in (2, 3))])
    deleted.delete()
    with ahead.lock:
        ahead.make_room(follows=True)
    assert (log, ahead.num_in_flight) == ([0], 2)


def test_a_limit_of_one_awaits_the_previous_program_before_the_launch():
    log = []
    ahead = RunAhead(limit=1)
    ahead.launch(stand_in_program(log, "first"))
    ahead.launch(lambda: (log.append("launch"), stand_in_program(log, "second")())[1])
    assert log == ["first", "launch"]


def test_a_token_that_its_owner_has_deleted_is_not_awaited():
    ahead = RunAhead(limit=1)
    result = jnp.zeros(())
    ahead.launch(lambda: (result, None))
    result.delete()
    ahead.launch(stand_in_program([], "next"))
    assert ahead.num_in_flight == 1


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        RunAhead(limit=0)


def test_the_limit_is_chosen_for_the_threads_of_this_process():
    # conftest.py asks for two threads a device.
    assert cpu_client.num_client_threads(NUM_DEVICES) >= 2 * NUM_DEVICES
    assert RunAhead().limit == MAX_IN_FLIGHT
    assert runahead.RUN_AHEAD.limit == MAX_IN_FLIGHT


def test_real_programs_run_ahead_and_give_their_values():
    program, ahead = over_all_devices(summing), RunAhead()
    x = jnp.ones((4,))
    for _ in range(50):
        x = ahead.launch(program, x) / NUM_DEVICES
        assert ahead.num_in_flight <= MAX_IN_FLIGHT
    np.testing.assert_array_equal(x, np.ones((4,)))


def test_an_error_is_raised_once_before_the_next_launch_and_nothing_stays():
    log = []
    ahead = RunAhead(limit=3)
    ahead.launch(stand_in_program(log, 0, ValueError("rotten")))
    ahead.launch(stand_in_program(log, 1, ValueError("poisoned by 0")))
    ahead.launch(stand_in_program(log, 2))
    with pytest.raises(ValueError, match="rotten") as caught:
        ahead.launch(stand_in_program(log, "never launched"))
    assert log == [0, 1, 2]
    assert ahead.num_in_flight == 0
    notes = "\n".join(caught.value.__notes__)
    assert "launched earlier" in notes
    assert "1 program(s) launched after it failed as well: ValueError: poisoned by 0" in notes
    ahead.launch(stand_in_program(log, 3))
    ahead.wait()
    assert log == [0, 1, 2, 3]


def test_an_error_of_a_real_program_is_raised_by_the_wait_once():
    # In its own process: JAX repeats the error of a callback at exit.
    run_fresh(
        """
        from replicax.backend import devices
        devices.set_virtual_devices(8)
        import jax, jax.numpy as jnp
        from replicax.backend.runahead import RunAhead
        from tests.backend.test_runahead import over_all_devices, summing

        def failing(x):
            def complain(value):
                raise ValueError("the batch is rotten")
            x = jax.pure_callback(complain, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return x.sum() * 0, x

        ahead, program = RunAhead(limit=4), over_all_devices(failing)
        for _ in range(3):
            ahead.launch(program, jnp.ones((4,)))
        try:
            ahead.wait()
        except jax.errors.JaxRuntimeError as error:
            assert "the batch is rotten" in str(error), error
            assert "2 program(s) launched after it failed as well" in error.__notes__[1]
        else:
            raise AssertionError("no error")
        assert ahead.num_in_flight == 0
        assert float(ahead.launch(over_all_devices(summing), jnp.ones(()))) == 8
        ahead.wait()
        """
    )


def test_a_program_that_fails_to_launch_leaves_no_token():
    ahead = RunAhead(limit=2)

    def broken():
        raise TypeError("bad arguments")

    for _ in range(3):
        with pytest.raises(TypeError, match="bad arguments"):
            ahead.launch(broken)
    assert ahead.num_in_flight == 0


def test_settling_keeps_an_error_for_the_next_launch():
    log = []
    ahead = RunAhead(limit=3)
    ahead.launch(stand_in_program(log, 0, ValueError("rotten")))
    ahead.wait(raise_errors=False)
    assert ahead.num_in_flight == 1
    with pytest.raises(ValueError, match="rotten"):
        ahead.wait()
    assert ahead.num_in_flight == 0


def test_ctrl_c_during_the_wait_loses_no_token_and_launches_nothing():
    log = []
    ahead = RunAhead(limit=2)
    interrupted = stand_in_program(log, 0, KeyboardInterrupt())()[0]
    ahead.launch(lambda: (interrupted, None))
    ahead.launch(stand_in_program(log, 1))
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        ahead.launch(stand_in_program(log, "never launched"))
    assert ahead.num_in_flight == 2
    interrupted.error = None
    ahead.launch(stand_in_program(log, 2))
    ahead.wait()
    assert log == [0, 0, 1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_real_ctrl_c_leaves_the_lock_free_for_other_threads():
    ahead = RunAhead(limit=1)
    program = over_all_devices(slow)
    ahead.launch(program, jnp.ones(()))
    ahead.wait()

    def for_ever():
        while True:
            ahead.launch(program, jnp.ones(()))

    # Again after a second: Python drops what a finalizer or a gc callback raises.
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3, 1.0)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            for_ever()
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    other = threading.Thread(target=ahead.launch, args=(program, jnp.ones(())))
    other.start()
    other.join(20)
    assert not other.is_alive()
    ahead.wait()
    assert ahead.num_in_flight == 0


def test_launches_of_several_threads_do_not_overlap():
    ahead = RunAhead(limit=3)
    inside, most = [], []

    def program():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.0005)
        inside.pop()
        return StandInToken([], 0), None

    def loop():
        for _ in range(50):
            ahead.launch(program)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (200, 1)
    assert 1 <= ahead.num_in_flight <= 3


def test_a_program_may_launch_another_while_it_is_traced():
    log = []
    ahead = RunAhead(limit=2)
    outer = stand_in_program(log, "outer")
    ahead.launch(lambda: (ahead.launch(stand_in_program(log, "inner")), outer())[1])
    ahead.wait()
    assert log == ["inner", "outer"]


def test_an_operation_without_a_token_is_awaited():
    ahead = RunAhead(limit=2)
    mesh = Mesh(np.array(jax.devices()), ("replica",))
    split = NamedSharding(mesh, PartitionSpec("replica"))
    array = ahead.launch_and_wait(jax.device_put, jnp.arange(8.0), split)
    assert array.is_ready()
    assert ahead.num_in_flight == 0


def test_a_reset_forgets_tokens_and_the_chosen_limit():
    log = []
    ahead = RunAhead()
    ahead.launch(stand_in_program(log, 0))
    ahead.reset()
    assert (ahead.num_in_flight, log, ahead.limit) == (0, [], MAX_IN_FLIGHT)


@pytest.mark.timing
def test_a_launch_with_room_costs_microseconds():
    ahead = RunAhead(limit=8)
    token = jax.device_put(
        jnp.zeros(()), NamedSharding(Mesh(np.array(jax.devices()), ("r",)), PartitionSpec())
    )
    result = (token, None)

    def program():
        return result

    best = min(_seconds(lambda: ahead.launch(program)) for _ in range(20))
    assert best < 50e-6  # about 2 microseconds on a quiet machine


def _seconds(call, repeat=200):
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def test_one_program_at_a_time_where_jax_started_without_threads_to_spare():
    # 64 devices are more than half the threads of any machine this is likely to run on.
    output = run_fresh(
        """
        import jax
        jax.devices()
        from replicax.backend import devices, runahead
        assert len(devices.local_devices()) == 64
        print(runahead.is_pool_small(), runahead.RUN_AHEAD.limit)
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=64",
        NPROC="64",
    )
    assert output.split() == ["True", "1"]


def test_one_cpu_device_needs_no_threads_to_spare():
    output = run_fresh(
        """
        from replicax.backend import runahead
        print(runahead.is_pool_small(), runahead.RUN_AHEAD.limit)
        """,
        NPROC="1",
    )
    assert output.split() == ["False", str(MAX_IN_FLIGHT)]
