"""An error in a step shows the user's frames; those of Replicax and JAX are removed."""

import os
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.notices import JAX_DIR, PACKAGE_DIR
from replicax.core.tracebacks import VALUE_NEEDED

HERE = os.path.abspath(__file__)
MOST_LINES = 21  # what plain jit takes


def helper(x):
    return x @ jnp.ones((3, 2))


def mistake(x):
    return helper(x)


def branch(x, scale):
    return x if x.sum() > 0 else scale["by"] * x


def index(x, scale):
    return [1, 2, 3][scale["by"]], x


def refused(x):
    return rx.Variable(1.0).assign([x])


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def batch(strategy):
    return strategy.distribute_batch(np.ones((4, 2), np.float32))


def error_of(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        return error
    raise AssertionError("no error")


def own_files(error):
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]


def differentiated(s, batch, fn):
    # Python 3.13 shows all lines of a call, so each is one line.
    step = rx.function(lambda x: rx.grad(lambda: fn(x).sum(), rx.Variable(1.0)))
    return s.run(step, args=(batch,))


WAYS = {
    "eager": lambda s, batch, fn: s.run(fn, args=(batch,)),
    "compiled": lambda s, batch, fn: s.run(rx.function(fn), args=(batch,)),
    "whole": lambda s, batch, fn: rx.function(lambda x: s.run(fn, args=(x,)))(batch),
    "function": lambda s, batch, fn: rx.function(fn)(jnp.ones((4, 2))),
    "loss": differentiated,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fn", [mistake, refused])
def test_only_frames_of_the_user_are_shown(strategy, batch, way, fn):
    error = error_of(WAYS[way], strategy, batch, fn)
    assert set(own_files(error)) == {HERE}
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert names[-1] == ("helper" if fn is mistake else "refused")
    lines = "".join(traceback.format_exception(error)).splitlines()
    assert len(lines) <= MOST_LINES, lines


def test_all_frames_are_shown_when_filtering_is_off(strategy, batch):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        error = error_of(WAYS["compiled"], strategy, batch, mistake)
    finally:
        jax.config.update("jax_traceback_filtering", before)
    files = own_files(error)
    assert any(file.startswith(PACKAGE_DIR) for file in files)
    assert any(file.startswith(JAX_DIR) for file in files)


@pytest.mark.parametrize("way", ["compiled", "whole", "function"])
@pytest.mark.parametrize(("fn", "argument"), [(branch, "x"), (index, r"scale\['by'\]")])
def test_python_that_needs_a_traced_value_names_the_function_and_argument_of_the_user(
    strategy, batch, way, fn, argument
):
    scale = {"by": np.int32(1)}
    calls = {
        "compiled": lambda: strategy.run(rx.function(fn), args=(batch, scale)),
        "whole": lambda: rx.function(lambda x: strategy.run(fn, args=(x, scale)))(batch),
        "function": lambda: rx.function(fn)(jnp.ones((4, 2)), scale),
    }
    line = fn.__code__.co_firstlineno
    message = rf"the function {fn.__name__} at {HERE}:{line}\..* of the argument {argument}\."
    with pytest.raises(VALUE_NEEDED, match=message) as caught:
        calls[way]()
    assert set(own_files(caught.value)) == {HERE}
