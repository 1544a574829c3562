"""What a checkpoint finds in the objects it is given, and what it calls that."""

import collections

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.errors import CheckpointMismatchError, CheckpointObjectError
from replicax.checkpoint.objects import Found
from replicax.core import notices
from tests.contracts.strategies import mirrored


def keys(**objects):
    found = Found()
    found.add_all(objects, lambda name, value: None)
    return list(found.entries)


def round_trip(tmp_path, saved, fresh):
    path = Checkpoint(**saved).write(tmp_path / "saved")
    checkpoint = Checkpoint(**fresh)
    checkpoint.read(path).assert_consumed()
    return checkpoint


class Dense:
    def __init__(self, value=0.0):
        self.w = rx.Variable(np.full(2, value, np.float32))
        self._bias = rx.Variable(np.float32(value))
        self.activation = jnp.tanh
        self.units = 2


class Model:
    def __init__(self, value=0.0):
        self.layers = [Dense(value), {"deep": (Dense(value),)}]
        self.itself = self
        self.strategy = rx.get_strategy()


class Counter:
    """An object with its own state, as those of other libraries have."""

    def __init__(self, count=0):
        self.count = count
        self.table = np.full(3, count)

    def state_dict(self):
        return {"count": self.count, "table": self.table, 7: ("a", None, b"\x00\xff", [1.5])}

    def load_state_dict(self, state):
        if state["count"] < 0:
            raise ValueError("a count below 0")
        self.count, self.table, self.rest = state["count"], state["table"], state[7]


Pair = collections.namedtuple("Pair", ["first", "second"])


def test_keys_are_the_way_to_a_variable():
    variables = {"a": rx.Variable(0.0), 3: [rx.Variable(1.0), Pair(rx.Variable(2.0), [])]}

    assert keys(model=Model(), tree=variables) == [
        "model/layers/0/w",
        "model/layers/0/_bias",
        "model/layers/1/deep/0/w",
        "model/layers/1/deep/0/_bias",
        "tree/a",
        "tree/3/0",
        "tree/3/1/first",
    ]


def test_keys_of_optimizers_metrics_and_generators_are_readable():
    with mirrored(2).scope():
        params = {"w": rx.Variable(np.ones(2, np.float32), name="w"), "b": rx.Variable(0.0)}
        optimizer = rx.Optimizer(optax.adam(0.1))
        optimizer.build(params)
        found = keys(optimizer=optimizer, loss=rx.metrics.Mean(), noise=rx.random.Generator(0))

    assert found == [
        "optimizer/iterations",
        "optimizer/0/count",
        "optimizer/0/mu/Variable",
        "optimizer/0/mu/w",
        "optimizer/0/nu/Variable",
        "optimizer/0/nu/w",
        "loss/total",
        "loss/count",
        "noise/state",
    ]


def test_variables_of_equal_names_have_keys_of_their_own():
    params = [rx.Variable(0.0), rx.Variable(1.0)]
    optimizer = rx.Optimizer(optax.trace(0.9))
    optimizer.build(params)

    assert keys(o=optimizer)[1:] == ["o/trace/Variable", "o/trace/Variable_1"]


def test_objects_of_a_users_own_class_are_restored(tmp_path):
    fresh = Model()

    round_trip(tmp_path, {"model": Model(2.5)}, {"model": fresh})

    np.testing.assert_array_equal(fresh.layers[1]["deep"][0].w.numpy(), [2.5, 2.5])
    assert fresh.layers[0]._bias.numpy() == 2.5


def test_the_parts_of_a_root_object_have_no_name_in_front(tmp_path):
    fresh = Dense()
    path = Checkpoint(Dense(3.0)).write(tmp_path / "saved")

    Checkpoint(root=fresh).read(path).assert_consumed()

    assert fresh._bias.numpy() == 3


def test_python_values_are_put_back_in_their_places(tmp_path):
    log = {"best": None, "names": ["", 0], "done": False}

    restored = round_trip(
        tmp_path,
        {"epoch": 4, "log": {"best": 0.1, "names": ["x", 2**70], "done": True}, "note": "é"},
        {"epoch": 0, "log": log, "note": ""},
    )

    assert log == {"best": 0.1, "names": ["x", 2**70], "done": True}
    assert (restored.epoch, restored.note) == (4, "é")


def test_an_object_with_a_state_dict_gets_it_back(tmp_path):
    fresh = Counter()

    round_trip(tmp_path, {"counter": Counter(9)}, {"counter": fresh})

    assert fresh.count == 9
    np.testing.assert_array_equal(fresh.table, [9, 9, 9])
    assert fresh.rest == ("a", None, b"\x00\xff", [1.5])


def test_numpy_random_state_is_an_object_with_its_own_state(tmp_path):
    random, fresh = np.random.RandomState(0), np.random.RandomState(1)
    random.uniform(size=5)

    round_trip(tmp_path, {"random": random}, {"random": fresh})

    assert fresh.uniform() == random.uniform()


def test_when_an_object_refuses_its_state_nothing_is_restored(tmp_path):
    path = Checkpoint(a=Counter(5), b=Counter(-1), w=rx.Variable(1.0)).write(tmp_path / "saved")
    a, b, w = Counter(2), Counter(3), rx.Variable(0.0)

    with pytest.raises(CheckpointMismatchError, match="b: Counter refused its state: a count bel"):
        Checkpoint(a=a, b=b, w=w).read(path)

    assert (a.count, b.count, w.numpy()) == (2, 3, 0)


def test_a_shared_variable_is_saved_once_and_known_by_both_names(tmp_path):
    shared = rx.Variable(4.0)
    path = Checkpoint(one=shared, two=[shared]).write(tmp_path / "saved")
    first, second = rx.Variable(0.0), rx.Variable(0.0)

    Checkpoint(two=[second], one=first).read(path).assert_consumed()

    assert first.numpy() == second.numpy() == 4


def test_checkpoints_can_be_inside_each_other(tmp_path):
    w = rx.Variable(0.0)
    path = Checkpoint(inner=Checkpoint(w=rx.Variable(2.0), n=3)).write(tmp_path / "saved")
    inner = Checkpoint(w=w, n=0)

    Checkpoint(inner=inner).read(path).assert_consumed()

    assert (w.numpy(), inner.n) == (2, 3)


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        ({"deep": [object()]}, "a checkpoint got builtins.object at 'x/deep/0', which it cannot"),
        (jnp.ones(2), "at 'x', which it cannot save. An array cannot be replaced"),
        (np.ones(2), "got numpy.ndarray at 'x', .* make it a replicax.Variable"),
        (lambda: 0, "got builtins.function at 'x'"),
        (optax.sgd(0.1), "got builtins.function at 'x/init'"),
        (Dense, "got builtins.type at 'x'"),
        ((1, 2), "got 1 at 'x/0', in a tuple"),
        ({(1, 2): 3}, r"the dict at 'x' of a checkpoint has the key \(1, 2\) of type tuple"),
        ({"a/b": 1, "a": {"b": 2}}, "two things in a checkpoint would have the key 'x/a/b'"),
    ],
)
def test_what_cannot_be_saved_is_an_error_that_says_where_it_is(thing, text):
    with pytest.raises(CheckpointObjectError, match=text):
        Checkpoint(x=thing)


def test_variables_of_another_library_are_refused():
    keras_like = type("Model", (), {"variables": [np.ones(2)]})()

    with pytest.raises(CheckpointObjectError, match=r"whose variables are of type numpy\.ndarray"):
        Checkpoint(model=keras_like)


def test_an_object_without_anything_to_save_is_an_error_when_saving(tmp_path):
    class Empty:
        pass

    checkpoint = Checkpoint(model=Empty())

    with pytest.raises(CheckpointObjectError, match=r"would save nothing of 'model' .*Empty"):
        checkpoint.write(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["save", "save_counter", "_x"])
def test_names_of_its_own_are_refused(name):
    with pytest.raises(CheckpointObjectError, match=f"cannot call an object '{name}'"):
        Checkpoint(**{name: 1})


def test_an_object_that_is_not_there_is_an_error_that_lists_those_that_are():
    with pytest.raises(AttributeError, match=r"no object 'v'; it has \['w'\]"):
        _ = Checkpoint(w=rx.Variable(1.0)).v


def test_states_that_json_and_arrays_cannot_hold_are_refused(tmp_path):
    class Odd:
        def __init__(self, state):
            self.state_dict = lambda: state
            self.load_state_dict = print

    for state, text in [
        ({"a": {1, 2}}, "has set {1, 2} at 'x/a'"),
        ({(1,): 2}, r"has the dict key \(1,\)"),
        ({"a": np.array(["s"])}, "an array of dtype <U1 at 'x/a'"),
    ]:
        with pytest.raises(CheckpointObjectError, match=text):
            Checkpoint(x=Odd(state)).write(tmp_path / "saved")


class WithArrays:
    """An object of a user with a variable and, which is easy to overlook, with arrays."""

    def __init__(self):
        self.w = rx.Variable(1.0)
        self.scale = np.ones(2)
        self.parts = {"shift": jnp.zeros(2)}


def test_arrays_in_attributes_are_not_saved_and_one_notice_says_so(tmp_path):
    key = ("arrays in attributes", "model/parts/shift", "model/scale")
    notices.forget(key)
    checkpoint = rx.Checkpoint(model=WithArrays())
    message = "'model/parts/shift', 'model/scale' will be missing.*make it a replicax.Variable"
    with pytest.warns(rx.ReplicaxWarning, match=message) as shown:
        checkpoint.save(tmp_path / "ckpt")
        checkpoint.save(tmp_path / "ckpt")
    assert len(shown) == 1
