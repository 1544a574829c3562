"""Small variables of a step in one buffer: nobody can tell, but for the time it takes."""

import gc
import threading
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend import compat, runahead
from replicax.core.errors import LostVariableError
from replicax.variables import pool
from replicax.variables.pool import PooledStorage
from replicax.variables.storage import COUNTS, Storage, array_slot
from tests.functions.test_traces import compilations

MANY = pool.MIN_MEMBERS + 8
SUM, ON_READ = rx.VariableAggregation.SUM, rx.VariableSynchronization.ON_READ


@pytest.fixture(params=[1, 2, 8])
def strategy(request):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


class Growing:
    """Many small variables, and a step that adds to each its number times the argument."""

    def __init__(self, strategy, count=MANY, *, donate=True):
        self.strategy = strategy
        with strategy.scope():
            self.variables = [
                rx.Variable(np.full((2, i % 3 + 1), i, np.float32), name=f"v{i}")
                for i in range(count)
            ]
        self.total = 1.0

        @rx.function(donate=donate)
        def step(x):
            for i, variable in enumerate(self.variables):
                variable.assign(variable + i * x)
            return 2.0 * x

        self.function = step

    def step(self, x=1.0):
        self.function(jnp.float32(x))
        self.total += x

    def expected(self, i):
        return np.full((2, i % 3 + 1), i * self.total, np.float32)

    def check(self):
        """Looks at every value, in a way that leaves no pool."""
        for i, variable in enumerate(self.variables):
            np.testing.assert_array_equal(variable.numpy(), self.expected(i), err_msg=f"v{i}")

    @property
    def num_pooled(self):
        return sum(type(v._storage) is PooledStorage for v in self.variables)


def pool_of(variable):
    return array_slot.__get__(variable._storage)


def pooled(strategy, count=MANY):
    growing = Growing(strategy, count)
    for _ in range(4):
        growing.step()
    assert growing.num_pooled == count
    return growing


# -- what is pooled --------------------------------------------------------------------------------


def test_many_small_variables_are_one_input_of_their_step(strategy):
    growing = pooled(strategy)
    text = growing.function.lower(jnp.float32(1.0)).as_text()
    signature = text[text.index("@main(") : text.index("->")]
    assert signature.count("%arg") == 2
    growing.check()


@pytest.mark.slow
def test_the_program_has_pools_of_a_bounded_number_of_variables():
    growing = pooled(rx.MirroredStrategy(["CPU:0", "CPU:1"]), 2 * pool.MAX_MEMBERS + 1)
    sizes = Counter(map(pool_of, growing.variables)).values()
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 1
    growing.check()


def test_few_variables_keep_their_own_buffers(strategy):
    growing = Growing(strategy, pool.MIN_MEMBERS - 1)
    growing.step()
    assert growing.num_pooled == 0


def test_beside_variables_that_take_longer_themselves_nothing_is_pooled():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    growing = Growing(strategy)
    with strategy.scope():
        large = rx.Variable(np.zeros((MANY + 2, pool.MAX_AVERAGE), np.float32))

    @rx.function
    def step():
        for variable in (*growing.variables, large):
            variable.assign(variable + 0.0)

    step()
    assert growing.num_pooled == 0


def test_without_donation_nothing_is_pooled(strategy):
    growing = Growing(strategy, donate=False)
    growing.step()
    assert growing.num_pooled == 0
    growing.check()


def test_only_small_mirrored_variables_of_one_dtype_are_pooled():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        small = [rx.Variable(np.ones(3, np.float32)) for _ in range(MANY)]
        others = [
            rx.Variable(np.ones(pool.MAX_SIZE + 1, np.float32)),
            rx.Variable(np.ones(3, np.int32)),
            rx.Variable(np.ones((0, 3), np.float32)),
            rx.Variable(1.0, synchronization=ON_READ, aggregation=SUM),
        ]
    plain = rx.Variable(np.ones(3, np.float32))

    @rx.function
    def step():
        for variable in (*small, *others[:3], plain):
            variable.assign(variable + 1)
        strategy.run(lambda: others[3].assign_add(1.0))

    step()
    step()
    assert {type(v._storage) is PooledStorage for v in small} == {True}
    assert not any(type(v._storage) is PooledStorage for v in (*others, plain))
    assert {float(v.numpy().ravel()[0]) for v in (*small, *others[:2], plain)} == {3.0}
    assert float(others[3]) == 6.0


def test_variables_on_logical_devices_are_pooled_unless_they_are_in_pieces():
    strategy = rx.MirroredStrategy(logical_devices=2)
    growing = pooled(strategy)
    with strategy.scope():
        cut = rx.Variable(np.zeros((2, 2), np.float32), partition_dimensions=[2, 1])

    @rx.function
    def step():
        for variable in (*growing.variables, cut):
            variable.assign_add(jnp.zeros(variable.shape))

    step()
    assert growing.num_pooled == MANY
    assert type(cut._storage) is not PooledStorage
    growing.check()


# -- reading ---------------------------------------------------------------------------------------


def test_a_variable_that_is_read_leaves_the_others_where_they_are(strategy):
    growing = pooled(strategy)
    before = COUNTS.stamp
    np.testing.assert_array_equal(growing.variables[5].numpy(), growing.expected(5))
    (first, *_) = strategy.experimental_local_results(growing.variables[6])
    np.testing.assert_array_equal(first, growing.expected(6))
    assert growing.num_pooled == MANY
    assert COUNTS.stamp is before


def test_every_copy_can_be_read():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    growing = pooled(strategy)
    copies = strategy.experimental_local_results(growing.variables[4])
    for copy in copies:
        np.testing.assert_array_equal(copy.value, growing.expected(4))
    seen = strategy.run(lambda: growing.variables[4] + 0.0)  # eagerly, in each replica
    for value in strategy.experimental_local_results(seen):
        np.testing.assert_array_equal(value, growing.expected(4))
    assert growing.num_pooled == MANY


def test_a_value_that_was_read_stays_as_it_was_in_later_steps(strategy):
    growing = pooled(strategy)
    kept = []
    for _ in range(30):
        kept.append((growing.variables[7].value, growing.expected(7)))
        growing.step()
    for value, expected in kept:
        np.testing.assert_array_equal(value, expected)
    assert growing.num_pooled == MANY


def test_who_reads_many_variables_gets_them_all_at_once(strategy):
    growing = pooled(strategy)
    growing.check()
    assert growing.num_pooled == 0
    growing.step()
    assert growing.num_pooled == MANY
    growing.check()


def test_copies_that_come_out_of_a_pool_share_no_memory():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    with strategy.scope():  # large enough that JAX would adopt memory of the host
        variables = [rx.Variable(np.full(512, i, np.float32)) for i in range(MANY)]

    @rx.function
    def step():
        for variable in variables:
            variable.assign(variable + 1.0)

    for _ in range(3):
        step()
    assert type(variables[0]._storage) is PooledStorage
    parts = [part for v in variables for part in compat.shards(v._storage.live_array())]
    assert len({part.unsafe_buffer_pointer() for part in parts}) == 3 * MANY


def test_reading_is_counted_between_two_steps(strategy):
    growing = pooled(strategy)
    for _ in range(3 * pool.MAX_READS):
        growing.variables[3].numpy()
        growing.step()
    assert growing.num_pooled == MANY


def test_a_value_is_read_inside_a_trace(strategy):
    growing = pooled(strategy)
    seen = []

    @rx.function
    def other(x):
        seen.append(growing.variables[2]._storage.component(0))  # concrete, also here
        return x + 1.0

    other(1.0)
    np.testing.assert_array_equal(seen[0], growing.expected(2))


# -- writing ---------------------------------------------------------------------------------------


def test_an_assignment_between_steps_is_seen_by_the_next_one(strategy):
    growing = pooled(strategy)
    growing.variables[3].assign(np.full((2, 1), 100.0))
    growing.step()
    np.testing.assert_array_equal(growing.variables[3].numpy(), np.full((2, 1), 103.0))
    np.testing.assert_array_equal(growing.variables[4].numpy(), growing.expected(4))
    assert growing.num_pooled == MANY


def test_all_variables_are_assigned_one_by_one(strategy):
    growing = pooled(strategy)
    for variable in growing.variables:
        variable.assign_sub(variable)
    growing.total = 0.0
    growing.step()
    growing.check()


def test_a_checkpoint_has_the_values_of_the_step_it_was_made_after(strategy, tmp_path):
    growing = pooled(strategy)
    checkpoint = rx.Checkpoint(variables=growing.variables)
    path = checkpoint.save(tmp_path)
    saved = growing.total
    for _ in range(3):
        growing.step()
    assert growing.num_pooled == MANY
    checkpoint.restore(path)
    growing.total = saved
    growing.step()
    growing.check()


# -- other programs --------------------------------------------------------------------------------


def test_a_program_that_reads_the_variables_takes_turns_with_the_step(strategy):
    growing = pooled(strategy)

    @rx.function
    def evaluate():
        return sum(v.value.sum() for v in growing.variables)

    for _ in range(3):
        for _ in range(pool.MIN_LAUNCHES + 1):
            growing.step()
        expected = sum(growing.expected(i).sum() for i in range(MANY))
        for _ in range(3):
            np.testing.assert_allclose(evaluate(), expected, rtol=1e-6)
    growing.step()
    assert growing.num_pooled == MANY
    growing.check()


@pytest.mark.slow
def test_programs_over_the_same_variables_share_a_pool():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variables = [rx.Variable(np.zeros(2, np.float32)) for _ in range(MANY)]

    @rx.function
    def step(x):
        for variable in variables:
            variable.assign(variable + x.sum())

    batches = [np.ones(size, np.float32) for size in (2, 3)]
    for batch in batches:
        step(batch)
    owner = pool_of(variables[0])
    for _ in range(6):
        for batch in batches:
            step(batch)
            assert pool_of(variables[0]) is owner
    np.testing.assert_array_equal(variables[-1].numpy(), [35.0, 35.0])


def test_a_pool_that_others_dissolve_all_the_time_is_given_up(strategy):
    growing = pooled(strategy)
    for _ in range(pool.MAX_SHORT_LIVES + 3):
        growing.check()
        growing.step()
    assert growing.num_pooled == 0
    with compilations() as count:
        for _ in range(3):
            growing.check()
            growing.step()
    assert count == []
    assert growing.function.trace_count == 1


# -- variables that go, and failures ---------------------------------------------------------------


def test_copies_outlive_a_variable_that_was_in_a_pool(strategy):
    growing = pooled(strategy)
    views = strategy.experimental_local_results(growing.variables[9])
    expected = growing.expected(9)
    del growing.function
    growing.variables.pop(9)
    gc.collect()
    for view in views:
        np.testing.assert_array_equal(view.value, expected)
    np.testing.assert_array_equal(growing.variables[8].numpy(), growing.expected(8))


def test_the_buffer_goes_with_the_variables_although_their_step_stays():
    @rx.function
    def step(variables):
        for variable in variables:
            variable.assign(variable + 1.0)

    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variables = [rx.Variable(np.zeros(2, np.float32)) for _ in range(MANY)]
    step(variables)
    owner = pool_of(variables[0])
    del variables[:-2]
    gc.collect()
    assert owner.array is not None
    del variables
    gc.collect()
    assert owner.array is None
    assert step.trace_count == 1


def test_a_variable_that_goes_while_its_pool_is_filled_takes_nothing_with_it(monkeypatch):
    growing = pooled(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    owner, found = pool_of(growing.variables[0]), Storage.has_value.fget
    owner.dissolve()
    first, second = owner.members[:2]

    def has_value(storage):  # what the garbage collector may do between two members
        if storage is second and type(first) is PooledStorage:
            first.free()
        return found(storage)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "has_value", property(has_value))
        owner.fill()
    assert not first.has_value
    for i in (1, 2, MANY - 1):
        np.testing.assert_array_equal(growing.variables[i].numpy(), growing.expected(i))


def test_a_step_whose_variable_has_gone_is_not_run_on_what_is_left():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variables = [rx.Variable(np.zeros(2, np.float32)) for _ in range(MANY)]

    @rx.function
    def step():
        for variable in variables:
            variable.assign(variable + 1.0)

    for _ in range(4):
        step()
    variables.pop()
    gc.collect()
    for _ in range(4):
        step()
    assert {float(v.numpy()[0]) for v in variables} == {8.0}


def fail(x, fails):
    if fails:
        raise ValueError("broken on purpose")
    return np.asarray(x)


def test_a_failed_step_loses_the_variables_and_says_so():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variables = [
            rx.Variable(np.zeros(2, np.float32), name=f"v{i}", aggregation=SUM) for i in range(MANY)
        ]

    @rx.function
    def step(fails):
        spec = jax.ShapeDtypeStruct((2,), np.float32)
        x = jax.pure_callback(fail, spec, jnp.ones(2), fails)  # on every replica alike
        for variable in variables:
            variable.assign_add(x)

    for _ in range(3):
        strategy.run(step, args=(0.0,))
    assert type(variables[0]._storage) is PooledStorage
    with pytest.raises(Exception, match="broken on purpose"):
        strategy.run(step, args=(1.0,))
        runahead.wait()
    for i in (3, 30):
        with pytest.raises(LostVariableError, match=rf"variable 'v{i}' was donated"):
            variables[i].numpy()
    with pytest.raises(LostVariableError, match=r"variable 'v0' was donated"):
        strategy.run(step, args=(0.0,))
    for variable in variables:
        variable.assign(np.full(2, 5.0))
    strategy.run(step, args=(0.0,))
    assert {float(v.numpy()[0]) for v in variables} == {7.0}


@pytest.mark.slow
def test_threads_that_read_while_steps_run_see_whole_steps():
    growing = pooled(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    errors, done = [], threading.Event()

    def read():
        try:
            while not done.is_set():
                value = growing.variables[6].numpy()
                assert (value == value.ravel()[0]).all()
                assert value.ravel()[0] % 6 == 0
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        growing.step()
    done.set()
    for thread in threads:
        thread.join(30)
    assert errors == []
    growing.check()
