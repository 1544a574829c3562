"""What code inside the transformations of one frame reads and writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax.core.errors import TraceError
from tests.engine.frames import Key, run, trace


def checkpointed(frame, key):
    return jax.checkpoint(lambda x: x * frame.read(key))


CHECKPOINTS = {
    "checkpoint": (checkpointed, 3.0),
    "everything saved": (
        lambda frame, key: jax.checkpoint(
            lambda x: x * frame.read(key), policy=jax.checkpoint_policies.everything_saveable
        ),
        3.0,
    ),
    "checkpoint of checkpoint": (
        lambda frame, key: jax.checkpoint(checkpointed(frame, key)),
        3.0,
    ),
    "checkpoint of jit": (
        lambda frame, key: jax.checkpoint(jax.jit(lambda x: x * frame.read(key))),
        3.0,
    ),
    "scan of checkpoint": (
        lambda frame, key: (
            lambda x: lax.scan(lambda c, _: (checkpointed(frame, key)(c), None), x, None, length=2)[
                0
            ]
        ),
        9.0,
    ),
    "checkpoint of scan": (
        lambda frame, key: jax.checkpoint(
            lambda x: lax.scan(lambda c, _: (c * frame.read(key), None), x, None, length=2)[0]
        ),
        9.0,
    ),
    "cond of checkpoint": (
        lambda frame, key: lambda x: lax.cond(x > 0, checkpointed(frame, key), jnp.sin, x),
        3.0,
    ),
    "vmap of checkpoint": (
        lambda frame, key: lambda x: jax.vmap(checkpointed(frame, key))(x[None])[0],
        3.0,
    ),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_the_backward_pass_of_a_checkpoint_sees_the_value_of_the_forward_pass(case):
    key = Key()
    block, expected = CHECKPOINTS[case]

    def fn(frame, x):
        _, pullback = jax.vjp(block(frame, key), x)
        frame.write(key, jnp.float32(100.0))
        return pullback(jnp.float32(1.0))[0]

    _, (gradient,) = run(fn, {key: 3.0}, jnp.float32(1.0))
    assert float(gradient) == expected


def test_a_checkpoint_in_a_loop_sees_the_value_of_its_round():
    key = Key()

    def fn(frame, x):
        def body(carry, _):
            carry = checkpointed(frame, key)(carry)
            frame.write(key, frame.read(key) + 1.0)
            return carry, None

        return jax.grad(lambda x: lax.scan(body, x, None, length=3)[0])(x)

    written, (gradient,) = run(fn, {key: 3.0}, jnp.float32(1.0))
    assert float(gradient) == 3.0 * 4.0 * 5.0
    assert float(written[key]) == 6.0


def test_a_function_that_jax_traced_elsewhere_in_the_frame_reads_what_is_true_here():
    key = Key()

    def fn(frame, x):
        helper = jax.jit(lambda x: x * frame.read(key))
        add = jax.jit(lambda: frame.write(key, frame.read(key) + 1.0))
        block = jax.checkpoint(helper)

        def body(carry, _):
            carry = helper(carry)
            add()
            return block(carry), None

        seen = [helper(x), block(x), lax.scan(body, x, None, length=2)[0], block(x)]
        add()
        seen += [helper(x), block(x), jax.jit(lambda x: (add(), helper(x))[1])(x), block(x)]
        return jnp.stack(seen)

    written, (seen,) = run(fn, {key: 2.0}, jnp.float32(1.0))
    assert seen.tolist() == [2.0, 2.0, 2.0 * 3.0 * 3.0 * 4.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    assert float(written[key]) == 6.0


def test_a_read_after_a_write_in_the_same_inner_trace_sees_it():
    key = Key()

    def fn(frame, x):
        def inner(x):
            frame.write(key, x * 5.0)
            read = lambda: frame.read(key)  # noqa: E731
            return read() + jax.jit(read)() + lax.cond(x > 0, read, lambda: 0.0)

        return jax.jit(inner)(x)

    _, (result,) = run(fn, {key: 2.0}, jnp.float32(1.0))
    assert float(result) == 15.0


def test_a_read_in_a_reduction_is_refused():
    key = Key("scale")

    def fn(frame, x):
        return lax.reduce(x, np.float32(0), lambda a, b: a + b * frame.read(key), (0,))

    with pytest.raises(TraceError, match=r"variable 'scale' is read in a function that reduces"):
        trace(fn, jnp.ones(3))


def custom(frame, key):
    """A function with a rule that reads, too."""
    made = jax.custom_jvp(lambda x: x * frame.read(key))
    made.defjvp(lambda p, t: (p[0] * frame.read(key), t[0] * frame.read(key)))
    return made


def test_a_rule_that_reads_inside_jit_is_refused():
    key = Key("scale")

    def fn(frame, x):
        return jax.grad(jax.jit(custom(frame, key)))(x)

    with pytest.raises(TraceError, match=r"variable 'scale' is read in a rule .* as an argument"):
        trace(fn, 1.0)


@pytest.mark.parametrize("reads_first", [True, False])
def test_a_read_in_a_custom_rule_of_what_an_inner_trace_writes_is_refused(reads_first):
    key = Key("scale")

    def fn(frame, x):
        def body(carry, _):
            if reads_first:
                carry = custom(frame, key)(carry)
            frame.write(key, frame.read(key) + 1.0)
            return carry if reads_first else custom(frame, key)(carry), None

        return lax.scan(body, x, None, length=2)[0]

    with pytest.raises(TraceError, match=r"variable 'scale' is read inside jax\.custom_jvp or"):
        trace(fn, 1.0)


def test_a_write_where_jax_may_run_code_again_is_refused():
    key = Key("count")

    def fn(frame, x):
        def matvec(x):
            frame.write(key, frame.read(key) + 1.0)
            return x * 2.0

        return lax.custom_linear_solve(matvec, x, lambda mv, b: b / 2.0, symmetric=True)

    with pytest.raises(
        TraceError, match=r"variable 'count' is assigned inside custom_linear_solve, where JAX"
    ):
        trace(fn, 1.0)
