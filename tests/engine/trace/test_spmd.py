"""The one program of all replicas: its kinds, its state, its collectives, its refusals."""

import dataclasses
import gc
import pathlib
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax.backend.mesh import replica_mesh
from replicax.core.errors import TraceError
from replicax.engine.trace import spmd
from replicax.engine.trace.frame import current_frame
from replicax.engine.trace.spmd import Argument, Outputs, trace_replicas
from replicax.jax_internals.programs import sub_jaxprs

SUM = rx.VariableAggregation.SUM
AXIS = rx.REPLICA_AXIS


@dataclasses.dataclass(frozen=True, eq=False)
class Key:
    name: str = "state"
    local_shape: tuple = ()
    dtype: object = jnp.float32
    per_replica: bool = False
    num_replicas: int = 4

    @property
    def global_shape(self):
        return (self.num_replicas, *self.local_shape) if self.per_replica else self.local_shape


class State:
    """The surrounding trace's state: a dictionary."""

    def __init__(self, values):
        self.values = dict(values)
        self.num_reads = 0

    def read(self, key):
        self.num_reads += 1
        return self.values[key]

    def write(self, key, value):
        self.values[key] = value


@pytest.fixture
def mesh():
    return replica_mesh(tuple(jax.devices()[:4]))


def run(body, args, mesh, state=None):
    """What `trace_replicas` emits, executed; and the values of the state afterwards."""
    state = state or {}
    box = []

    def program(values, arrays):
        outer = State(dict(zip(state, values, strict=True)))
        given = [Argument(a, arg.shapes) for a, arg in zip(arrays, args, strict=True)]
        emitted = trace_replicas(body, given, mesh, outer, [])
        box.append(emitted.shapes)
        return emitted.uniform, emitted.varying, [outer.values[key] for key in state]

    values = [jnp.asarray(value) for value in state.values()]
    uniform, varying, after = jax.jit(program)(values, [arg.value for arg in args])
    return uniform, varying, dict(zip(state, after, strict=True)), box[0]


def eqn_names(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in sub_jaxprs(eqn.params):
            yield from eqn_names(inner)


# -- kinds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "kinds"),
    [
        ([], (0, 0, 0, 0)),
        ([None], (0, 0, 0, 0)),
        ([((2,),) * 4], (0, 0, 0, 0)),
        ([((2,), (2,), (2,), (1,))], (0, 0, 0, 1)),
        ([((3,), (1,), (3,), (0,))], (0, 1, 0, 2)),
        ([((2,), (2,), (1,), (1,)), ((5,), (4,), (4,), (4,))], (0, 1, 2, 2)),
        ([((2,), (2,), (1,), (1,)), None], (0, 0, 1, 1)),
    ],
)
def test_replicas_with_the_same_component_shapes_are_of_one_kind(shapes, kinds):
    args = [Argument(None, shape) for shape in shapes]
    assert spmd._kinds_by_shape(args, 4) == kinds


def test_an_argument_is_cut_to_the_true_shape():
    argument = Argument(None, ((3,), (1,), ()))
    part = jnp.arange(3.0)
    assert argument.local(part, 0) is part
    np.testing.assert_array_equal(argument.local(part, 1), [0.0])
    assert argument.local(part[:1], 2).shape == ()
    assert Argument(None).local(part, 2) is part


def test_the_body_is_traced_once_per_kind_and_sees_true_shapes(mesh):
    seen = []

    def body(args, variant):
        seen.append((variant.example_id, args[0].shape, variant.replica_id))
        return Outputs([], [args[0].sum(), args[0] * 2.0])

    shapes = ((2,), (2,), (1,), (0,))
    packed = jnp.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 99.0, 99.0, 99.0])
    _, (sums, doubled), _, (sum_shapes, shapes_out) = run(body, [Argument(packed, shapes)], mesh)
    assert seen == [(0, (2,), None), (2, (1,), None), (3, (0,), None)]
    np.testing.assert_array_equal(sums, [3.0, 7.0, 5.0, 0.0])
    assert sum_shapes == ((),) * 4
    assert shapes_out == shapes
    np.testing.assert_array_equal(doubled[:5], [2.0, 4.0, 6.0, 8.0, 10.0])


def test_threads_of_an_uneven_trace_do_not_stay(mesh):
    def alive():
        return sum(t.name.startswith("replicax-replica-") for t in threading.enumerate())

    before = alive()
    for size in (7, 6, 5, 3):
        strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"])
        batch = strategy.distribute_batch(np.ones(size))
        strategy.run(rx.function(lambda x: x.sum()), args=(batch,))
    del strategy
    deadline = time.monotonic() + 20.0
    while alive() > before:
        gc.collect()
        assert time.monotonic() < deadline, f"{alive() - before} threads are left"
        time.sleep(0.05)


# -- state -------------------------------------------------------------------------------------


def test_state_is_read_once_and_written_back(mesh):
    shared, own, unread = Key("shared", (2,)), Key("own", per_replica=True), Key("unread")

    def body(args, variant):
        frame = current_frame()
        total = lax.psum(args[0].sum(), AXIS)
        frame.write(shared, frame.read(shared) + total)
        frame.write(own, frame.read(own) * 10 + args[0].sum())
        return Outputs([total], [frame.read(shared)])

    args = [Argument(jnp.arange(4.0), ((1,),) * 4)]
    state = {shared: jnp.zeros(2), own: jnp.arange(4.0), unread: jnp.ones(())}
    uniform, varying, after, shapes = run(body, args, mesh, state)
    assert float(uniform[0]) == 6.0
    np.testing.assert_array_equal(after[shared], [6.0, 6.0])
    np.testing.assert_array_equal(after[own], [0.0, 11.0, 22.0, 33.0])
    assert float(after[unread]) == 1.0
    np.testing.assert_array_equal(varying[0], [6.0] * 8)
    assert shapes == [((2,),) * 4]


def test_state_that_only_one_kind_touches_is_written_back_for_it_only(mesh):
    own = Key("own", per_replica=True)

    def body(args, variant):
        frame = current_frame()
        if args[0].shape == (1,):
            frame.write(own, args[0].sum())
        return Outputs([], [])

    shapes = ((2,), (2,), (1,), (1,))
    packed = jnp.asarray([1.0, 1.0, 2.0, 2.0, 3.0, 0.0, 4.0, 0.0])
    _, _, after, _ = run(body, [Argument(packed, shapes)], mesh, {own: jnp.full(4, 7.0)})
    np.testing.assert_array_equal(after[own], [7.0, 7.0, 3.0, 4.0])


def test_frames_are_reported_also_when_tracing_fails(mesh):
    frames = []

    def body(args, variant):
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        jax.make_jaxpr(lambda: trace_replicas(body, [], mesh, State({}), frames).uniform)()
    assert len(frames) == 1


# -- the program of a step ---------------------------------------------------------------------


@pytest.fixture
def strategy():
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(4)])


def variables_in(strategy, count, **options):
    with strategy.scope():
        return [rx.Variable(jnp.zeros(i + 2), **options) for i in range(count)]


def jaxpr_of(step, strategy, *args):
    program, arrays = step._site.program_for(step.python_function, args, {}, strategy=strategy)
    launcher = program.launcher
    written = [key.live_array() for key in launcher._written]
    read = [key.live_array() for key in launcher._read]
    return jax.make_jaxpr(launcher._program)(written, read, arrays).jaxpr


def train_step(variables):
    def step(x):
        local = [x.sum() * (v * 0 + 1) for v in variables]
        gradients = rx.get_replica_context().all_reduce("MEAN", local)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_add(gradient)

    return step


def test_a_plain_step_has_no_refs(strategy):
    variables = variables_in(strategy, 3, aggregation=rx.VariableAggregation.MEAN)
    step = rx.function(train_step(variables))
    batch = strategy.distribute_batch(np.ones(8, np.float32))
    names = list(eqn_names(jaxpr_of(step, strategy, batch)))
    assert "shard_map" in names
    assert not [name for name in names if name in ("new_ref", "ref", "get", "swap", "addupdate")]


def test_only_what_an_inner_trace_touches_becomes_a_ref(strategy):
    inside, outside = variables_in(strategy, 2, aggregation=SUM)

    @rx.function
    def step():
        outside.assign_add(jnp.ones(3))
        lax.scan(lambda c, _: (inside.assign_add(jnp.ones(2)) is None, None), False, None, length=2)

    names = list(eqn_names(jaxpr_of(step, strategy)))
    assert sum(name in ("new_ref", "ref") for name in names) == 1
    strategy.run(step)
    assert (float(inside[0]), float(outside[0])) == (8.0, 4.0)


def operands(text):
    lines = [line for line in text.splitlines() if re.search(r"= .* all-reduce(-start)?\(", line)]
    return sorted(
        shape
        for line in lines
        for shape in re.findall(r"f32\[[\d,]*\]", re.split(r" all-reduce(-start)?\(", line)[0])
    )


@pytest.mark.parametrize(
    ("num_packs", "expected"),
    [(None, ["f32[14]"]), (1, ["f32[14]"]), (2, ["f32[5]", "f32[9]"]), (0, None)],
)
@pytest.mark.filterwarnings("ignore:NcclAllReduce is the default:replicax.ReplicaxWarning")
def test_small_gradients_of_a_step_travel_together(num_packs, expected):
    ops = None if num_packs is None else rx.NcclAllReduce(num_packs=num_packs)
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(4)], cross_device_ops=ops)
    variables = variables_in(strategy, 4, aggregation=rx.VariableAggregation.NONE)

    def apply(strategy, gradients):
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_add(gradient)

    @rx.function
    def step(x):
        context = rx.get_replica_context()
        gradients = context.all_reduce("SUM", [x.sum() + jnp.zeros(v.shape) for v in variables])
        context.merge_call(apply, args=(gradients,))

    batch = strategy.distribute_batch(np.ones(8, np.float32))
    found = operands(step.lower_run(strategy, batch).compile().as_text())
    assert found == (expected or ["f32[2]", "f32[3]", "f32[4]", "f32[5]"])


def test_written_variables_keep_their_layout(strategy):
    on_read = rx.VariableSynchronization.ON_READ
    (mirrored,) = variables_in(strategy, 1, aggregation=SUM)
    (own,) = variables_in(strategy, 1, aggregation=SUM, synchronization=on_read)

    @rx.function
    def step():
        mirrored.assign(jnp.ones(2))
        own.assign(jnp.ones(2))

    before = [v._storage.array.sharding for v in (mirrored, own)]
    strategy.run(step)
    assert [v._storage.array.sharding for v in (mirrored, own)] == before


# -- refusals name the line --------------------------------------------------------------------


def line_with(text):
    source = pathlib.Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(source, 1) if line.strip().endswith(f"# {text}")]
    return f"{__file__}:{number}"


def test_a_write_that_differs_between_replicas_names_variable_and_line(strategy):
    (v,) = variables_in(strategy, 1)

    def merge_fn(strategy, x):
        v.assign(x._local)  # the drifting write

    def replica_fn(x):
        rx.get_replica_context().merge_call(merge_fn, args=(x,))

    batch = strategy.distribute_batch(np.ones(8, np.float32))
    with pytest.raises(TraceError, match="is mirrored, but the value assigned at") as caught:
        strategy.run(rx.function(replica_fn), args=(batch,))
    assert line_with("the drifting write") in str(caught.value)
    assert "variable 'Variable'" in str(caught.value)
    assert float(v[0]) == 0.0


def test_a_collective_that_only_some_replicas_reach_names_its_line(strategy):
    def replica_fn(x):
        return lax.cond(
            x.sum() > 0,
            lambda: rx.get_replica_context().all_reduce("SUM", x),  # the divergent collective
            lambda: x,
        )

    batch = strategy.distribute_batch(np.ones(8, np.float32))
    with pytest.raises(TraceError, match="replica") as caught:
        strategy.run(rx.function(replica_fn), args=(batch,))
    assert line_with("the divergent collective") in str(caught.value)


def test_an_aggregated_write_that_only_some_replicas_reach_names_its_line(strategy):
    (v,) = variables_in(strategy, 1, aggregation=SUM)

    def replica_fn(x):
        def write():
            v.assign_add(jnp.ones(2))  # the divergent write

        lax.while_loop(lambda s: s < x.sum(), lambda s: [s + 1.0, write()][0], 0.0)

    batch = strategy.distribute_batch(np.ones(8, np.float32))
    with pytest.raises(TraceError, match="replica") as caught:
        strategy.run(rx.function(replica_fn), args=(batch,))
    assert line_with("the divergent write") in str(caught.value)
    strategy.run(rx.function(lambda: v.assign_add(jnp.ones(2))))
    assert float(v[0]) == 4.0


def test_results_of_different_rank_are_refused_with_their_shapes(strategy):
    def replica_fn(x):
        return x if x.shape == (2,) else x.sum()

    batch = strategy.distribute_batch(np.ones(7, np.float32))
    with pytest.raises(TraceError, match=r"values of different rank, with shapes \(\(2,\), \(\)\)"):
        strategy.run(rx.function(replica_fn), args=(batch,))


def test_merge_fn_that_returns_a_local_as_one_value_is_refused(strategy):
    def replica_fn(x):
        local = x.sum()
        return rx.get_replica_context().merge_call(lambda strategy: local)

    batch = strategy.distribute_batch(np.ones(8, np.float32))
    with pytest.raises(TraceError, match="merge_fn returned a value that differs between replicas"):
        strategy.run(rx.function(replica_fn), args=(batch,))
