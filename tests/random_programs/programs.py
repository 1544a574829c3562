"""Draws whole random programs: variables, steps, and what is around the run."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.random_programs.drawing import METHODS, SCALAR, Drawer, Place
from tests.random_programs.syntax import (
    AllReduce,
    Batch,
    Binary,
    Block,
    Const,
    CrossAssign,
    Local,
    Program,
    Reduction,
    ReplicaId,
    Step,
    Variable,
)

NUM_REPLICAS = (2, 2, 2, 2, 1, 3, 3, 3, 8)
DTYPES = ("float32",) * 5 + ("float16", "float16", "bfloat16", "int32")
EXECUTORS = (
    ("compiled",), ("compiled",), ("compiled",), ("inside",), ("inside",), ("inside",),
    ("eager",), ("eager",), ("eager", "compiled", "inside"),
)  # fmt: skip
KNOBS = (
    "float", "array", "numpy", "partial", "keyword", "tuple", "method", "closure", "function",
    "defaults", "helper",
)  # fmt: skip
MAX_REDUCTIONS = 2
LARGE = 40000  # in the range of float16; the sum of two is not, and their mean is


@st.composite
def programs(draw):
    """A random program, without a look at what it computes."""
    num_replicas = draw(st.sampled_from(NUM_REPLICAS))
    dtype = draw(st.sampled_from(DTYPES))
    variables = [_variable(draw, i, dtype) for i in range(draw(st.integers(1, 3)))]
    knobs = tuple(draw(st.lists(st.sampled_from(KNOBS), max_size=2)))
    drawer = Drawer(draw, num_replicas, dtype, tuple(variables), len(knobs))
    place = Place({})
    statements = drawer.statements(place, 4)
    outputs = [Local(name) for name in place.names]
    outputs.append(drawer.expression(place, drawer.chance(30)))
    if drawer.chance(60):
        outputs.append(Batch(drawer.expression(place, SCALAR, 1)))
    before = [_cross_assign(drawer)] if drawer.chance(30) else []
    after = _reductions(drawer, outputs)
    if dtype == "float16" and drawer.chance(40):
        _add_large_means(variables, outputs, after)
    readable = [i for i, v in enumerate(variables) if not (v.on_read and v.aggregation == "NONE")]
    return Program(
        num_replicas=num_replicas,
        dtype=dtype,
        variables=tuple(variables),
        knobs=knobs,
        argument=drawer.one_of(("float", "array", "numpy")),
        wrapped=drawer.one_of(("plain", "plain", "partial", "method")),
        before=tuple(before),
        body=Block((), statements, Const(0)),
        outputs=tuple(outputs),
        after=tuple(after),
        reads=tuple(readable) if drawer.chance(40) else (),
        steps=_steps(draw, num_replicas, len(knobs)),
        executors=draw(st.sampled_from(EXECUTORS)),
    )


def _variable(draw, index, dtype):
    dtypes = (dtype,) * 4 + (("float32", "int32") if dtype != "int32" else ("float32",))
    own = draw(st.sampled_from(dtypes))
    aggregations = ["SUM", "ONLY_FIRST_REPLICA", "SUM", "NONE"]
    aggregations += ["MEAN", "MEAN"] if own != "int32" else []
    return Variable(
        name=f"v{index}",
        is_vector=draw(st.integers(0, 9)) >= 7,
        dtype=own,
        initial=draw(st.integers(-1, 3)),
        on_read=draw(st.booleans()),
        aggregation=draw(st.sampled_from(aggregations)),
    )


def _cross_assign(drawer):
    index = drawer.draw(st.integers(0, len(drawer.variables) - 1))
    methods = ("assign",) if drawer.variables[index].on_read else METHODS
    return CrossAssign(index, drawer.one_of(methods), drawer.draw(st.integers(-2, 3)))


def _reductions(drawer, outputs):
    """What is reduced or gathered after the run."""
    found = []
    for index in drawer.draw(
        st.sets(st.sampled_from(range(len(outputs))), max_size=MAX_REDUCTIONS)
    ):
        is_batch = isinstance(outputs[index], Batch)
        if is_batch and drawer.chance(50):
            found.append(Reduction("gather", index, 0))
        else:
            found.append(Reduction(drawer.operation(), index, 0 if is_batch else None))
    return found


def _add_large_means(variables, outputs, after):
    """Means that only a type wider than float16 gets right: on read, in the run, and after it."""
    large = Variable(f"v{len(variables)}", False, "float16", LARGE, True, "MEAN")
    variables.append(large)
    number = Binary("+", Binary("*", ReplicaId(), Const(64)), Const(LARGE))
    after.append(Reduction("MEAN", len(outputs) + 1, 0))
    outputs += [AllReduce("MEAN", number), Batch(Const(LARGE // 2))]


def _sizes(draw, num_replicas):
    """How many examples each replica has: often even, else as a short batch, else anything."""
    kind = draw(st.sampled_from(("even", "short", "any", "short", "none")))
    if kind == "even":
        return (draw(st.integers(1, 2)),) * num_replicas
    if kind == "none":
        return (0,) * num_replicas
    if kind == "any":
        return tuple(draw(st.integers(0, 2)) for _ in range(num_replicas))
    rest = draw(st.integers(1, 2 * num_replicas))
    chunk = -(-rest // num_replicas)
    return tuple(max(0, min(chunk, rest - i * chunk)) for i in range(num_replicas))


def _steps(draw, num_replicas, num_knobs):
    """One to three steps; a step often repeats the sizes, and seldom the numbers, of the last."""
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        repeat = steps and draw(st.integers(0, 9)) >= 3
        sizes = steps[-1].sizes if repeat else _sizes(draw, num_replicas)
        numbers = st.integers(-1, 3)
        keep = steps and draw(st.integers(0, 9)) >= 6
        knobs = steps[-1].knobs if keep else tuple(draw(numbers) for _ in range(num_knobs))
        steps.append(Step(sizes, draw(st.integers(0, 6)), draw(numbers), knobs))
    return tuple(steps)
