"""Restoring: all differences at once, and values that wait for their objects."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.checkpoint import awaiting
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.errors import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    UnmatchedValuesError,
)
from replicax.core.notices import ReplicaxWarning
from replicax.variables import registry
from tests.contracts.strategies import mirrored


def saved(tmp_path, **objects):
    return Checkpoint(**objects).write(tmp_path / "saved")


# -- differences -------------------------------------------------------------------------------


def test_every_difference_is_listed_and_nothing_is_overwritten(two, tmp_path):
    path = saved(
        tmp_path, a=rx.Variable(1.0), b=rx.Variable([1, 2]), c=rx.Variable(3.0), n=1, m="text"
    )
    with two.scope():
        a = rx.Variable(0.0)
        b = rx.Variable(np.zeros(3, np.float32))
    checkpoint = Checkpoint(a=a, b=b, c=5, n="text", m=rx.Variable(0.0), d=rx.Variable(0.0))

    with pytest.raises(CheckpointMismatchError) as raised:  # noqa: PT011
        checkpoint.read(path)

    text = str(raised.value)
    assert "nothing was restored. 6 differences:" in text
    for row in (
        "b: shape (3,) here, (2,) in the checkpoint",
        "b: dtype float32 here, int32 in the checkpoint",
        "c: a Python value here, a variable in the checkpoint",
        "n: string 'text' here, number 1 in the checkpoint",
        "m: a variable here, a Python value in the checkpoint",
        "d: missing in the checkpoint",
    ):
        assert f"\n  {row}" in text
    assert (a.numpy(), checkpoint.c, checkpoint.n) == (0, 5, "text")
    np.testing.assert_array_equal(b.numpy(), np.zeros(3))


def test_a_wide_variable_is_saved_whole_and_not_restored_while_wide_types_are_off(two, tmp_path):
    with jax.enable_x64(True), two.scope():
        v = rx.Variable(np.array([1 / 3, 2.0]), name="v")
    path = saved(tmp_path, v=v)
    with pytest.raises(CheckpointMismatchError, match=r"v: dtype float64, which would be cut to"):
        Checkpoint(v=v).read(path)
    with jax.enable_x64(True):
        v.assign([0.0, 0.0])
        Checkpoint(v=v).read(path)
        assert v.numpy().tolist() == [1 / 3, 2.0]


def test_a_path_without_a_checkpoint_is_an_error_that_lists_those_beside_it(tmp_path):
    Checkpoint(n=1).save(tmp_path / "ckpt")

    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint .*ckpt-9.*: \['ckpt-1'\]"):
        Checkpoint(n=0).restore(tmp_path / "ckpt-9")


# -- what restore returns ----------------------------------------------------------------------


def test_nothing_is_restored_from_none():
    status = Checkpoint(n=1).restore(None)

    assert status.expect_partial() is status
    with pytest.raises(UnmatchedValuesError, match="the path was None"):
        status.assert_consumed()


def test_the_status_tells_which_values_nobody_took(tmp_path):
    path = saved(tmp_path, a=rx.Variable(1.0), b=rx.Variable(2.0))
    status = Checkpoint(a=rx.Variable(0.0)).read(path)

    assert status.assert_existing_objects_matched().assert_nontrivial_match() is status
    with pytest.raises(UnmatchedValuesError, match=r"no object has taken: \['b'\]"):
        status.assert_consumed()
    status.expect_partial()


def test_a_status_of_no_match_at_all_is_found(tmp_path):
    path = saved(tmp_path, a=rx.Variable(1.0))
    status = Checkpoint().read(path)

    with pytest.raises(UnmatchedValuesError, match=r"no object has taken a value .*\['a'\]"):
        status.assert_nontrivial_match()
    status.expect_partial()


def test_an_object_attached_later_without_a_saved_value_is_found(tmp_path):
    path = saved(tmp_path, a=rx.Variable(1.0))
    checkpoint = Checkpoint(a=rx.Variable(0.0))
    status = checkpoint.read(path).assert_consumed()
    checkpoint.late = rx.Variable(0.0)

    with pytest.raises(UnmatchedValuesError, match=r"nothing for the objects \['late'\]"):
        status.assert_existing_objects_matched()


def test_saving_what_was_restored_in_part_warns_unless_that_is_expected(tmp_path):
    path = saved(tmp_path, a=rx.Variable(1.0), b=rx.Variable(2.0))
    checkpoint = Checkpoint(a=rx.Variable(0.0))
    status = checkpoint.read(path)

    with pytest.warns(ReplicaxWarning, match=r"not in the checkpoint that is saved now: \['b'\]"):
        checkpoint.write(tmp_path / "other")
    status.expect_partial()
    checkpoint.write(tmp_path / "other")


# -- deferred ----------------------------------------------------------------------------------


class Lazy:
    """A model that creates its variables when it is first called."""

    def __init__(self):
        self.w = None
        self.layers = {}

    def __call__(self, x):
        if self.w is None:
            self.w = rx.Variable(np.zeros(2, np.float32), name="w")
            self.layers["first"] = [rx.Variable(jnp.zeros(2))]
        return x * self.w + self.layers["first"][0]


def full():
    model = Lazy()
    model(1.0)
    model.w.assign(np.float32([3, 4]))
    model.layers["first"][0].assign(np.float32([0.5, 0.25]))
    return model


@pytest.mark.parametrize("how", ["eager", "function", "run", "compiled run"])
def test_a_variable_created_after_restore_has_its_value_at_the_first_use(how, strategy, tmp_path):
    path = saved(tmp_path, model=full())
    model = Lazy()
    status = Checkpoint(model=model).read(path)

    with strategy.scope():
        if how == "eager":
            result = model(np.float32([2, 2]))
        elif how == "function":
            result = rx.function(model)(np.float32([2, 2]))
    if how.endswith("run"):
        fn = rx.function(lambda x: model(x)) if how == "compiled run" else model
        results = strategy.run(fn, args=(np.float32([2, 2]),))
        result = strategy.experimental_local_results(results)[-1]

    np.testing.assert_array_equal(result, [6.5, 8.25])
    status.assert_consumed()
    assert model.w.strategy is (None if strategy is rx.get_strategy() else strategy)


def test_slots_created_by_the_first_step_have_their_values(strategy, tmp_path):
    def make():
        with strategy.scope():
            w = rx.Variable(np.float32([1, 2]), name="w")
            optimizer = rx.Optimizer(optax.sgd(0.5, momentum=0.9))

        @rx.function
        def step():
            optimizer.apply_gradients([(w.value / strategy.num_replicas_in_sync, w)])

        return w, optimizer, step

    w, optimizer, step = make()
    for _ in range(2):
        strategy.run(step)
    path = saved(tmp_path, w=w, optimizer=optimizer)
    strategy.run(step)
    again, optimizer_again, step_again = make()
    status = Checkpoint(w=again, optimizer=optimizer_again).read(path)
    strategy.run(step_again)

    status.assert_consumed()
    np.testing.assert_array_equal(again.numpy(), w.numpy())
    assert int(optimizer_again.iterations) == 3


def test_an_object_attached_to_the_checkpoint_later_gets_its_value_at_once(tmp_path):
    path = saved(tmp_path, w=rx.Variable(2.0), n=5)
    w = rx.Variable(0.0)
    w.assign(1.0)
    checkpoint = Checkpoint()
    status = checkpoint.read(path)

    checkpoint.w, checkpoint.n = w, 0

    assert (w.numpy(), checkpoint.n) == (2, 5)
    status.assert_consumed()


def test_a_later_object_that_does_not_fit_is_an_error_where_it_is_used(tmp_path):
    path = saved(tmp_path, model={"w": rx.Variable([1.0, 2.0])})
    model = {}
    checkpoint = Checkpoint(model=model)
    checkpoint.read(path)
    model["w"] = rx.Variable(0.0)

    with pytest.raises(CheckpointMismatchError, match=r"model/w: shape \(\) here, \(2,\) in"):
        model["w"].numpy()
    checkpoint.read(saved(tmp_path, model={"w": rx.Variable(1.0)})).assert_consumed()


def test_a_variable_assigned_before_it_was_attached_is_not_overwritten_silently(tmp_path):
    path = saved(tmp_path, model={"w": rx.Variable(1.0)})
    model = {}
    status = Checkpoint(model=model).read(path)
    w = rx.Variable(0.0)
    w.assign_add(5.0)
    model["w"] = w

    with pytest.raises(CheckpointMismatchError, match=r"\['model/w'\] were assigned before"):
        status.assert_consumed()
    assert w.numpy() == 5
    status.expect_partial()


def test_a_variable_only_read_before_it_was_attached_gets_its_value(tmp_path):
    path = saved(tmp_path, model={"w": rx.Variable(1.0)})
    model = {}
    status = Checkpoint(model=model).read(path)
    w = rx.Variable(0.0)
    before = w.value
    model["w"] = w
    status.assert_consumed()

    assert (before, w.numpy()) == (0, 1)


def test_nothing_is_watched_when_all_values_are_taken(tmp_path):
    gc.collect()
    before = set(awaiting._waiting)  # of earlier tests, whose values nobody took
    path = saved(tmp_path, w=rx.Variable(1.0), v=rx.Variable(2.0))
    checkpoint = Checkpoint(w=rx.Variable(0.0))
    checkpoint.read(path)
    assert registry._observer is not None
    assert set(awaiting._waiting) > before

    checkpoint.v = rx.Variable(0.0)

    assert set(awaiting._waiting) == before
    assert (registry._observer is not None) == bool(before)


def test_values_wait_although_the_checkpoint_is_gone(tmp_path):
    path = saved(tmp_path, model={"w": rx.Variable(7.0)})
    model = {}
    Checkpoint(model=model).read(path)
    gc.collect()

    model["w"] = rx.Variable(0.0)

    assert model["w"].numpy() == 7


def test_a_partial_restore_waits_no_longer_than_its_checkpoint(tmp_path):
    path = saved(tmp_path, model={"w": rx.Variable(7.0)}, other=1)
    model = {}
    checkpoint = Checkpoint(model=model)
    checkpoint.read(path).expect_partial()
    del checkpoint
    gc.collect()

    model["w"] = rx.Variable(0.0)

    assert model["w"].numpy() == 0


def test_a_lost_variable_is_restored(tmp_path):
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable([1.0, 2.0])
    path = saved(tmp_path, w=w)
    w._storage.array.delete()
    w._storage.note_loss()

    Checkpoint(w=w).read(path)

    np.testing.assert_array_equal(w.numpy(), [1, 2])
