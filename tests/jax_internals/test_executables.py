"""Calling an executable of JAX itself does what calling it through `jit` does."""

import importlib
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax.backend import host_memory
from replicax.jax_internals.arrays import (
    is_committed,
    is_deleted,
    one_device_arrays,
    parts_placer,
)
from replicax.jax_internals.executables import (
    PLAIN_STATES,
    Executable,
    consume,
    executable_of,
    kind_of,
)
from tests.backend.fresh_process import run_fresh
from tests.engine.functions.test_traces import compilations
from tests.tiers import full_only


def step(state, x):
    return [state + x, x * 2]


def placed(value, num_devices):
    value = np.asarray(value, np.float32)
    if num_devices == 1:
        return jnp.asarray(value)
    mesh = Mesh(np.asarray(jax.devices()[:num_devices]), ("d",))
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec()))


def compiled(fn, *inputs, **options):
    return jax.jit(fn, **options).lower(*inputs).compile()


def call(executable, inputs):
    if executable.kept is not None:
        inputs = [inputs[index] for index in executable.kept]
    return consume(executable.execute(inputs), *executable.handlers)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_an_executable_gives_what_jit_gives(num_devices):
    state, x = placed([1.0, 2.0], num_devices), placed([3.0, 4.0], num_devices)
    expected = jax.jit(step)(state, x)
    executable = executable_of(compiled(step, state, x), [state, x])
    assert isinstance(executable, Executable)
    outputs = call(executable, [state, x])
    for output, other in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, other)
        assert output.sharding == other.sharding
        assert is_committed(output) == other.committed == (num_devices > 1)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_an_executable_takes_donated_inputs(num_devices):
    state, x = placed([1.0, 2.0], num_devices), placed([3.0, 4.0], num_devices)
    executable = executable_of(compiled(step, state, x, donate_argnums=0), [state, x])
    assert executable is not None
    call(executable, [state, x])
    assert state.is_deleted()
    assert not x.is_deleted()


def test_an_executable_knows_which_inputs_it_uses():
    state, x = jnp.ones(2), jnp.full(2, 5.0)
    executable = executable_of(compiled(lambda state, x: [x + 1], state, x), [state, x])
    assert executable is not None
    assert executable.kept == [1]
    np.testing.assert_array_equal(call(executable, [state, x])[0], [6.0, 6.0])


def callback(state, x):
    return [state + jax.pure_callback(lambda x: x, jax.typeof(x), x), x]


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(callback, id="a host callback"),
        pytest.param(lambda state, x: [jax.random.key(0), state + x], id="a random key"),
    ],
)
def test_a_program_that_needs_more_care_has_no_executable(fn):
    inputs = [jnp.ones(2), jnp.ones(2)]
    assert executable_of(compiled(fn, *inputs), inputs) is None


def test_inputs_in_other_places_have_no_executable():
    x = jnp.ones(2)
    elsewhere = jax.device_put(x, jax.devices()[3])
    assert executable_of(compiled(step, x, x), [x, elsewhere]) is None


def test_compiling_what_jit_has_compiled_compiles_nothing():
    program = jax.jit(lambda state, x: [state + x])
    inputs = [jnp.ones(3), jnp.ones(3)]
    with compilations() as count:
        lowered = program.lower(*inputs)
        program(*inputs)
        assert len(count) == 1
        lowered.compile()
    assert len(count) == 1


def test_arrays_of_one_program_share_their_kind():
    program = jax.jit(lambda x: x + 1)
    one, other = program(jnp.ones(3)), program(jnp.zeros(3))
    assert all(a is b for a, b in zip(kind_of(one), kind_of(other), strict=True))
    for different in (jnp.ones(4), jnp.ones(3, jnp.int32), jax.device_put(one, jax.devices()[2])):
        assert kind_of(different) != kind_of(one)


def test_only_concrete_arrays_have_a_kind():
    for value in (1.0, np.ones(3, np.float32), None, jax.random.key(0)):
        with pytest.raises(AttributeError, match=r"no attribute '(aval|_sharding)'"):
            kind_of(value)


def are_plain():
    return [state.value is plain for state, plain in PLAIN_STATES]


def test_states_are_plain_unless_jit_has_more_to_do():
    assert all(are_plain())
    inside = []
    jax.jit(lambda: inside.append(are_plain()))()
    with jax.debug_nans(True):
        inside.append(are_plain())
    with jax.debug_infs(True):
        inside.append(are_plain())
    with jax.set_mesh(Mesh(np.asarray(jax.devices()[:2]), ("d",))):
        inside.append(are_plain())
    assert [all(plain) for plain in inside] == [False] * 4
    assert all(are_plain())


@pytest.mark.parametrize("num_devices", [1, 4])
def test_parts_are_placed_as_an_array_like_the_example(num_devices):
    mesh = Mesh(np.asarray(jax.devices()[:num_devices]), ("d",))
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    example = jax.device_put(np.zeros((8, 2), np.float32), sharding)
    host = np.arange(16, dtype=np.float32).reshape(8, 2)
    array = parts_placer(example)(np.split(host, num_devices))
    np.testing.assert_array_equal(array, host)
    assert kind_of(array) == kind_of(example)
    again = jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
    assert kind_of(array) == kind_of(again)


def test_parts_are_placed_uncommitted_like_the_example():
    example = jnp.zeros(3)
    array = parts_placer(example)([np.ones(3, np.float32)])
    np.testing.assert_array_equal(array, np.ones(3))
    assert kind_of(array) == kind_of(example)
    assert not array.committed


def test_parts_are_placed_on_every_device_of_a_replicated_example():
    example = placed([1.0, 2.0], 4)
    array = parts_placer(example)([np.float32([3.0, 4.0])] * 4)
    assert array.sharding == example.sharding
    assert [shard.tolist() for shard in one_device_arrays(array)] == [[3.0, 4.0]] * 4


def test_aligned_parts_are_adopted_and_held():
    host = host_memory.aligned((4, 16), np.dtype(np.float32))
    host[...] = 7
    array = parts_placer(jnp.zeros((4, 16)))([host])
    assert array.unsafe_buffer_pointer() == host.ctypes.data
    held = weakref.ref(host)
    del host
    assert held() is not None
    np.testing.assert_array_equal(array, np.full((4, 16), 7))


@pytest.mark.parametrize("part", [0, 1])
def test_an_array_is_deleted_when_any_of_its_parts_is(part):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    whole = jax.device_put(
        np.arange(2.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    )
    assert not is_deleted(whole)
    whole.addressable_shards[part].data.delete()
    assert is_deleted(whole)


# -- a JAX without one of the names --------------------------------------------------------------

STEPS = """
import importlib, jax, numpy as np

owner = importlib.import_module("jax._src.{module}")
for name in {names}:
    kept = getattr(owner, name)
    delattr(owner, name)
import replicax as rx
for name in {names}:
    setattr(owner, name, kept)  # JAX itself needs it
from replicax.cli.doctor import diagnose
from replicax.jax_internals import executables

rx.set_virtual_devices(2)
strategy = rx.MirroredStrategy()
with strategy.scope():
    v = rx.Variable(0.0)

@rx.function
def step(x):
    total = rx.get_replica_context().all_reduce("SUM", x)
    strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(total,))
    return total

results = [strategy.run(step, args=(np.float32(number),)).numpy().tolist() for number in range(5)]
print(results, v.numpy().tolist(), executables.missing() is None, step.trace_count)
print(diagnose(cluster=False, seconds=1.0).launches)
"""


# JAX 0.11 moved it.
DEVICE_STATES = (
    "mesh" if hasattr(importlib.import_module("jax._src.mesh"), "device_context") else "config"
)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        full_only("core", []),
        ("core", ["trace_state_strong_ref"]),
        full_only(DEVICE_STATES, ["device_context"]),
        full_only("interpreters.pxla", ["ExecuteReplicated"]),
    ],
)
def test_without_a_private_name_a_step_goes_through_jit_and_nothing_else_changes(module, names):
    first, launches, *_ = run_fresh(STEPS.format(module=module, names=names)).splitlines()
    assert first == f"[0.0, 2.0, 4.0, 6.0, 8.0] 20.0 {not names} 1"
    assert launches == "direct" if not names else launches.startswith("through jit")


def test_a_compiled_program_of_another_form_is_left_to_jit():
    assert executable_of(object(), []) is None
