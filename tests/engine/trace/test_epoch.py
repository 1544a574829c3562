"""The token under which an eager replica traces: new after a write that follows a traced read."""

import threading

import jax
import jax.numpy as jnp
import pytest

from replicax.engine.trace import epoch


class Cell:
    """Stands for a variable: a value that jitted functions read while they are traced."""

    def __init__(self):
        self.value = 1.0
        self.num_traces = 0
        self.read = jax.jit(self._read)

    def _read(self, x):
        epoch.note_traced_read()
        self.num_traces += 1
        return x * self.value

    def write(self, value):
        self.value = value
        epoch.advance()


@pytest.fixture
def cell():
    return Cell()


def test_a_write_after_a_traced_read_makes_jax_trace_anew(cell):
    with epoch.replica_token(0):
        assert float(cell.read(1.0)) == 1.0
        assert float(cell.read(1.0)) == 1.0
        assert cell.num_traces == 1
        cell.write(2.0)
        assert float(cell.read(1.0)) == 2.0
        assert cell.num_traces == 2


def test_writes_without_a_traced_read_between_them_cost_nothing(cell):
    with epoch.replica_token(0):
        cell.read(1.0)
        cell.write(2.0)
        number = epoch.EPOCH.number
        for value in range(10):
            cell.write(float(value))
        assert epoch.EPOCH.number == number
        assert float(cell.read(1.0)) == 9.0


def test_programs_without_variables_are_traced_once_however_many_writes(cell):
    traces = []
    plain = jax.jit(lambda x: traces.append(1) or x + 1)
    epoch.advance()  # whatever was read before has been written now
    with epoch.replica_token(0):
        for value in range(5):
            plain(1.0)
            cell.write(float(value))
    assert len(traces) == 1


def test_each_replica_traces_for_itself(cell):
    results = []
    for replica_id, value in ((0, 1.0), (1, 5.0)):
        with epoch.replica_token(replica_id):
            cell.value = value  # no write: each replica has a copy of its own
            results.append(float(cell.read(1.0)))
    assert results == [1.0, 5.0]


def test_a_token_ends_with_its_block_and_is_restored():
    assert not epoch.has_token()
    with epoch.replica_token(0):
        assert epoch.has_token()
        with epoch.replica_token(1):
            assert epoch.has_token()
        assert epoch.has_token()
    assert not epoch.has_token()


def test_a_token_ends_when_the_block_raises():
    with pytest.raises(ValueError, match="on purpose"), epoch.replica_token(0):
        raise ValueError("on purpose")
    assert not epoch.has_token()


def test_a_write_inside_a_block_leaves_no_token_behind(cell):
    outside = jax.jit(lambda x: x * 3)
    outside(1.0)
    with epoch.replica_token(0):
        cell.read(1.0)
        cell.write(2.0)
        cell.read(1.0)
        cell.write(3.0)
    assert not epoch.has_token()
    traces = []
    fresh = jax.jit(lambda x: traces.append(1) or x)
    fresh(1.0)
    with epoch.replica_token(0):
        pass
    fresh(1.0)
    assert len(traces) == 1


def test_another_thread_has_no_token():
    seen = []
    with epoch.replica_token(0):
        thread = threading.Thread(target=lambda: seen.append(epoch.has_token()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_a_write_by_another_thread_is_seen_after_renew(cell):
    with epoch.replica_token(0):
        assert float(cell.read(1.0)) == 1.0
        thread = threading.Thread(target=cell.write, args=(4.0,))
        thread.start()
        thread.join()
        epoch.renew()  # as after every meeting
        assert float(cell.read(1.0)) == 4.0


def test_a_write_by_a_thread_outside_of_the_run_is_seen_at_once(cell):
    with epoch.eager_run(), epoch.replica_token(0):
        assert float(cell.read(1.0)) == 1.0
        thread = threading.Thread(target=cell.write, args=(4.0,))
        thread.start()
        thread.join()
        assert float(cell.read(1.0)) == 4.0
        assert cell.num_traces == 2
        assert float(cell.read(1.0)) == 4.0
        assert cell.num_traces == 2


def test_writes_of_the_run_itself_leave_other_threads_alone(cell):
    traces = []
    plain = jax.jit(lambda x: traces.append(1) or x + 1)
    plain(1.0)
    with epoch.eager_run():
        with epoch.replica_token(0):
            cell.read(1.0)
            cell.write(2.0)
        cell.write(3.0)  # as at a meeting
    plain(1.0)
    assert len(traces) == 1


def test_an_outer_block_is_brought_up_to_date_after_an_inner_one(cell):
    with epoch.replica_token(0):
        assert float(cell.read(1.0)) == 1.0
        with epoch.replica_token(1):
            cell.write(6.0)
        assert float(cell.read(1.0)) == 6.0


def test_renew_outside_a_block_does_nothing():
    epoch.renew()
    epoch.advance()
    assert not epoch.has_token()
    assert float(jnp.ones(()) + 1) == 2.0
