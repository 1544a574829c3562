"""What a trace knows of the state it touches: holes, refs, writes and adopted values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax.core.errors import TraceError
from replicax.engine.trace.frame import Frame, current_frame, hole_p
from replicax.jax_internals.programs import eval_jaxpr
from tests.engine.frames import Key, num_refs, primitives, run, trace

# -- holes -------------------------------------------------------------------------------------


def test_state_enters_on_first_touch_in_that_order():
    a, b = Key("a"), Key("b", (3,))

    def fn(frame, x):
        return frame.read(b).sum() + frame.read(a) + frame.read(b).sum() + x

    frame, jaxpr, _ = trace(fn, 1.0)
    assert frame.entered == [b, a]
    assert [v.aval.shape for v in jaxpr.invars] == [(3,), (), ()]
    assert frame.written == []


def test_holes_become_the_first_inputs_and_leave_no_trace():
    a, b = Key("a"), Key("b")
    written, (result,) = run(
        lambda frame, x: frame.read(a) * 10 + frame.read(b) + x, {a: 2.0, b: 3.0}, 0.5
    )
    assert written == {}
    assert float(result) == 23.5
    _, jaxpr, _ = trace(lambda frame: frame.read(a))
    assert hole_p.name not in set(primitives(jaxpr))


def test_a_hole_that_is_first_touched_deep_inside_enters_at_the_frames_own_level():
    key = Key()

    def fn(frame, x):
        return lax.scan(lambda c, _: (c * frame.read(key), None), x, None, length=2)[0]

    _, jaxpr, _ = trace(fn, 1.0)
    assert len(jaxpr.invars) == 2
    _, (result,) = run(fn, {key: 3.0}, 2.0)
    assert float(result) == 18.0


def test_unused_state_is_still_an_input():
    key = Key()

    def fn(frame):
        frame.read(key)
        return 1.0

    frame, jaxpr, _ = trace(fn)
    assert frame.entered == [key]
    assert len(jaxpr.invars) == 1


def test_in_a_replica_state_has_its_own_shape_and_outside_that_of_all():
    key = Key(local_shape=(3,), per_replica=True)
    for in_replica, shape in ((True, (3,)), (False, (2, 3))):
        shapes = []
        trace(lambda frame, s=shapes: s.append(frame.read(key).shape), in_replica=in_replica)
        assert shapes == [shape]


# -- values and refs ---------------------------------------------------------------------------


def test_reads_and_writes_at_the_frames_own_level_need_no_ref():
    key = Key()

    def fn(frame, x):
        before = frame.read(key)
        frame.write(key, before + x)
        frame.write(key, frame.read(key) * 2.0)
        return before

    _, jaxpr, _ = trace(fn, 1.0)
    assert num_refs(jaxpr) == 0
    written, (result,) = run(fn, {key: 3.0}, 1.0)
    assert float(written[key]) == 8.0
    assert float(result) == 3.0


def test_grad_and_vmap_around_a_read_need_no_ref():
    key = Key()

    def fn(frame, x):
        gradient = jax.grad(lambda x: x * frame.read(key))(x)
        return gradient + jax.vmap(lambda y: y * frame.read(key))(jnp.ones(2)).sum()

    _, jaxpr, _ = trace(fn, 1.0)
    assert num_refs(jaxpr) == 0
    _, (result,) = run(fn, {key: 3.0}, 1.0)
    assert float(result) == 9.0


@pytest.mark.parametrize("touch", ["read", "write"])
@pytest.mark.parametrize("inner", ["jit", "scan", "cond"])
def test_only_a_loop_and_a_write_inside_an_inner_trace_need_a_ref(touch, inner):
    key, other = Key("touched inside"), Key("touched outside")

    def act(frame):
        if touch == "write":
            frame.write(key, frame.read(key) + 1.0)
        return frame.read(key)

    def fn(frame, x):
        frame.write(other, x)
        frame.write(key, frame.read(key) * 10.0)
        if inner == "jit":
            result = jax.jit(lambda: act(frame))()
        elif inner == "scan":
            result = lax.scan(lambda c, _: (c, act(frame)), 0, None, length=2)[1][-1]
        else:
            result = lax.cond(x > 0, lambda: act(frame), lambda: jnp.zeros(()))
        frame.write(key, frame.read(key) + 0.5)
        return result

    _, jaxpr, _ = trace(fn, 1.0)
    needs_ref = touch == "write" or inner == "scan"
    assert num_refs(jaxpr) == needs_ref  # and only the state that needs it
    times = (2.0 if inner == "scan" else 1.0) if touch == "write" else 0.0
    frame, jaxpr, consts = trace(fn, 1.0)
    state = {key: 1.0, other: 0.0}

    @jax.jit
    def program(*inputs):
        return eval_jaxpr(jaxpr, consts, *inputs)

    outs = program(*(state[k] for k in frame.entered), 1.0)
    written = dict(zip(frame.written, outs[: len(frame.written)], strict=True))
    assert float(written[key]) == 10.0 + times + 0.5
    assert float(outs[-1]) == 10.0 + times


def test_a_write_stops_the_gradient():
    key = Key()

    def fn(frame, x):
        def loss(x):
            frame.write(key, x * 2.0)
            return frame.read(key) * x

        return jax.grad(loss)(x)

    written, (gradient,) = run(fn, {key: 0.0}, 3.0)
    assert float(gradient) == 6.0
    assert float(written[key]) == 6.0


def test_a_write_under_vmap_is_refused():
    key = Key("mean")

    def fn(frame):
        def element(x):
            frame.write(key, x)
            return x

        return jax.vmap(element)(jnp.ones(3))

    with pytest.raises(TraceError, match=r"variable 'mean' is assigned inside jax\.vmap, where"):
        trace(fn)


def test_a_write_under_a_vmap_that_is_outside_of_the_frame_is_not_its_business():
    key = Key()
    results = []

    def element(x):
        frame = Frame(in_replica=False)
        with frame.tracing():
            frame.adopt(key, x)
            frame.write(key, x * 2.0)
            results.append(frame.read(key))
            return frame.read(key)

    np.testing.assert_array_equal(jax.vmap(element)(jnp.ones(3)), [2.0, 2.0, 2.0])


def test_only_written_state_is_given_back_in_order_of_first_touch():
    a, b, c = Key("a"), Key("b"), Key("c")

    def fn(frame):
        frame.read(c)
        frame.read(b)
        frame.write(a, 1.0)
        frame.write(c, 2.0)

    frame, _, _ = trace(fn)
    assert frame.entered == [c, b, a]
    assert frame.written == [c, a]


def test_the_line_of_a_write_is_remembered():
    key = Key()
    frame, _, _ = trace(lambda frame: frame.write(key, 1.0))
    assert "test_frame.py:" in frame.cells[key].site


# -- adopted values ----------------------------------------------------------------------------


def test_adopted_state_is_no_input():
    key = Key()

    def fn(frame, x):
        frame.adopt(key, x * 3.0)
        value = frame.read(key)
        frame.write(key, value + 1.0)
        return value

    frame, jaxpr, _ = trace(fn, 2.0)
    assert frame.entered == []
    assert len(jaxpr.invars) == 1
    written, (result,) = run(fn, {}, 2.0)
    assert float(result) == 6.0
    assert float(written[key]) == 7.0


def test_adopted_state_that_is_not_written_is_not_given_back():
    key = Key()
    frame, _, _ = trace(lambda frame, x: frame.adopt(key, x), 1.0)
    assert frame.written == []


# -- the current frame -------------------------------------------------------------------------


def test_frames_nest_and_end():
    assert current_frame() is None
    seen = []

    def fn(frame):
        seen.append(current_frame() is frame)
        inner, _, _ = trace(lambda inner: seen.append(current_frame() is inner))
        seen.append(current_frame() is frame)
        assert inner is not frame

    trace(fn)
    assert seen == [True] * 3
    assert current_frame() is None


def test_a_frame_ends_when_the_trace_fails():
    def fn(frame):
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        trace(fn)
    assert current_frame() is None


def test_the_own_level_is_left_by_staging_and_by_nothing_else():
    seen = {}

    def fn(frame, x):
        seen["top"] = frame.is_own_level()
        jax.grad(lambda x: seen.setdefault("grad", frame.is_own_level()) * x)(x)
        jax.vmap(lambda x: seen.setdefault("vmap", frame.is_own_level()) * x)(jnp.ones(2))
        jax.jit(lambda: seen.setdefault("jit", frame.is_own_level()))()

    trace(fn, 1.0)
    assert seen == {"top": True, "grad": True, "vmap": True, "jit": False}


def test_a_function_that_jax_traced_in_another_frame_is_traced_anew():
    key = Key()
    frames = []
    helper = jax.jit(lambda: frames[-1].read(key))

    def fn(frame):
        frames.append(frame)
        return helper()

    for value in (1.0, 2.0):
        _, (result,) = run(fn, {key: value})
        assert float(result) == value
