"""Each private JAX API that Replicax uses still does what Replicax needs it for.

One test or more for every name in `jax_internals`; the last one fails when a name has none.
"""

import ast
import pathlib
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax.jax_internals import traces as traces_module
from replicax.jax_internals.arrays import (
    ConcreteArray,
    one_device_arrays,
    uncommitted,
    uncommitted_first,
    uncommitted_scalar,
)
from replicax.jax_internals.processes import (
    DetectedProcess,
    gke_tpu_hosts,
    has_started,
    is_tpu_host,
    slurm_process,
)
from replicax.jax_internals.programs import captured_tracers
from replicax.jax_internals.traces import (
    capture_thread_state,
    concretely,
    current_trace,
    inside_trace,
    is_batching,
    is_open,
    is_staging,
    is_traced_inside,
    is_transforming,
    outside_traces,
    recorded_for,
    trace_of,
    trace_settings,
    traces_inside,
)
from tests.architecture.source_tree import PACKAGE, tree
from tests.backend.fresh_process import run_fresh


def on_device(value, index):
    return jax.device_put(value, jax.devices()[index])


def replicated(value, count=4):
    mesh = Mesh(np.asarray(jax.devices()[:count]), ("d",))
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec()))


def sharded(value, count=4):
    mesh = Mesh(np.asarray(jax.devices()[:count]), ("d",))
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec("d")))


def ask(question):
    """The answer to `question` in every kind of trace."""
    answers = {"eager": question()}

    def note(where):
        answers[where] = question()
        return 1.0

    jax.jit(lambda: note("jit"))()
    jax.grad(lambda x: x * note("grad"))(1.0)
    jax.vmap(lambda x: x * note("vmap"))(jnp.ones(2))
    lax.scan(lambda c, _: (c, note("scan")), 0, None, length=1)
    lax.cond(True, lambda: note("cond"), lambda: 1.0)
    lax.while_loop(lambda i: i < 1, lambda i: i + int(note("while")), 0)
    jax.checkpoint(lambda x: x * note("checkpoint"))(1.0)
    jax.vmap(jax.jit(lambda x: x * note("jit in vmap")))(jnp.ones(2))
    jax.jit(jax.vmap(lambda x: x * note("vmap in jit")))(jnp.ones(2))
    jax.jit(jax.grad(lambda x: x * note("grad in jit")))(1.0)
    return answers


# -- traces ------------------------------------------------------------------------------------


def test_current_trace_is_another_one_in_each_transformation():
    outer = current_trace()
    seen = []
    jax.jit(lambda: seen.append(current_trace()))()
    jax.grad(lambda x: seen.append(current_trace()) or x)(1.0)
    assert current_trace() is outer
    assert seen[0] is not outer
    assert seen[1] is not outer


def test_inside_trace_selects_an_outer_trace():
    def outer(x):
        base = current_trace()

        def body(carry, _):
            with inside_trace(base):
                doubled = x * 2.0  # belongs to the outer program
                assert current_trace() is base
            return carry + doubled, None

        return lax.scan(body, 0.0, None, length=3)[0]

    assert float(jax.jit(outer)(1.0)) == 6.0
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(outer)(1.0).jaxpr.eqns]
    assert names[0] == "mul"


def test_is_staging_where_jax_records_a_program():
    answers = ask(is_staging)
    not_staging = {where for where, answer in answers.items() if not answer}
    assert not_staging == {"eager", "grad", "vmap"}


def test_trace_of_a_value_is_the_one_that_made_it():
    seen = []

    def loss(x):
        inner = lambda: seen.append((trace_of(x), current_trace())) or x  # noqa: E731
        seen.append((trace_of(x), current_trace()))
        return jax.jit(inner)()

    jax.grad(loss)(1.0)
    (outer, current), (same, other) = seen
    assert outer is current is same
    assert other is not outer


def test_is_transforming_wherever_a_transformation_is_open():
    answers = ask(is_transforming)
    assert [where for where, answer in answers.items() if not answer] == ["eager"]


def test_is_batching_wherever_a_vmap_is_open():
    answers = ask(is_batching)
    batching = {where for where, answer in answers.items() if answer}
    assert batching == {"vmap", "jit in vmap", "vmap in jit"}


def test_is_batching_looks_no_further_than_it_is_told():
    seen = []

    def element(x):
        base = current_trace()
        seen.append((is_batching(), is_batching(until=base)))
        jax.grad(lambda y: seen.append(is_batching(until=base)) or y)(1.0)
        return x

    jax.vmap(element)(jnp.ones(2))
    assert seen == [(True, False), False]


def test_outside_traces_a_program_runs_while_another_is_recorded():
    seen = []

    def recorded(x):
        with outside_traces():
            seen.append(jax.jit(lambda: jnp.ones(2) + 1)().tolist())
        return x + 1

    jax.jit(recorded)(1.0)
    assert seen == [[2.0, 2.0]]


def test_concretely_lets_operations_on_concrete_values_run_at_once():
    seen = []

    def inside():
        with concretely():
            seen.append(isinstance(jnp.ones(2) + 1, jax.core.Tracer))
        seen.append(isinstance(jnp.ones(2) + 1, jax.core.Tracer))

    jax.jit(inside)()
    assert seen == [False, True]
    seen.clear()
    inside()
    assert seen == [False, False]


def test_traces_inside_are_those_between_the_base_and_the_current_one():
    seen = {}

    def outer(x):
        base = current_trace()

        def note(where, y=1.0):
            inside, is_all = traces_inside(base)
            kinds = [kind for kind in map(recorded_for, inside) if kind is not None]
            seen[where] = kinds, is_all
            return y

        def rule(primals, tangents):
            return note("rule", primals[0]), tangents[0]

        custom = jax.custom_jvp(lambda y: note("custom_jvp", y))
        custom.defjvp(rule)
        with_rules = jax.custom_vjp(lambda y: note("custom_vjp", y))
        with_rules.defvjp(lambda y: (y, None), lambda _, g: (g,))
        note("own level")
        jax.grad(lambda y: note("grad", y))(x)
        jax.vmap(jax.jit(lambda y: note("jit in vmap", y)))(jnp.ones(2))
        lax.scan(lambda c, _: (jax.checkpoint(lambda y: note("scan", y))(c), None), x, None, 2)
        lax.cond(x > 0, lambda: note("cond"), lambda: 1.0)
        lax.switch(jnp.int32(x), [lambda: note("switch"), lambda: 1.0])
        lax.while_loop(lambda c: note("predicate", c < 1), lambda c: note("body", c + 1), x)
        lax.fori_loop(0, jnp.int32(x), lambda _, c: note("fori", c), x)
        lax.reduce(jnp.ones(2), 0.0, lambda a, b: note("reduce", a + b), (0,))
        lax.reduce_window(
            jnp.ones(2), 0.0, lambda a, b: note("window", a + b * 2), (2,), (1,), "valid"
        )
        jnp.ones(2).at[0].apply(lambda a: note("apply", a))
        custom(x)
        with_rules(x)
        jax.grad(jax.jit(custom))(x)

    jax.jit(outer)(1.0)
    assert seen == {
        "own level": ([], True),
        "grad": ([], True),
        "jit in vmap": (["vmap", "jit"], True),
        "scan": (["scan", "checkpoint / remat"], True),
        "cond": (["cond"], True),
        "switch": (["switch"], True),
        "predicate": (["while_cond"], True),
        "body": (["while_body"], True),
        "fori": (["fori_loop"], True),
        "reduce": (["reduce comp"], True),
        "window": (["reduce_window comp"], True),
        "apply": (["reduction_jaxpr"], True),
        "custom_jvp": (["custom_jvp fun"], False),
        "custom_vjp": (["custom_vjp fun"], False),
        "rule": (["custom_jvp jvp"], False),
    }


def test_a_tracer_is_open_inside_its_transformation_but_not_in_custom_rules():
    seen = {}

    def loss(x):
        def note(where, y=1.0):
            seen[where] = is_open(x)
            return y

        custom = jax.custom_jvp(lambda y: note("custom_jvp", y))
        custom.defjvp(lambda primals, tangents: (note("rule", primals[0]), tangents[0]))
        note("grad")
        jax.jit(lambda: note("jit"))()
        lax.scan(lambda c, _: (jax.vmap(lambda y: note("scan", y))(c), None), jnp.ones(2), None, 2)
        custom(2.0)
        return custom(x)

    jax.grad(loss)(1.0)
    assert seen == {"grad": True, "jit": True, "scan": True, "custom_jvp": False, "rule": False}


def test_captured_tracers_are_those_that_a_custom_rule_left_in_a_body():
    def outer(u, x):
        custom = jax.custom_jvp(lambda y: y)
        custom.defjvp(lambda primals, tangents: (primals[0], tangents[0] * u))
        return jax.grad(jax.jit(custom))(x)

    tracers = list(captured_tracers(jax.make_jaxpr(outer)(2.0, 3.0).jaxpr))
    assert tracers
    assert all(isinstance(tracer, jax.core.Tracer) for tracer in tracers)
    plain = jax.make_jaxpr(lambda u, x: jax.jit(lambda x: x * u)(x))(2.0, 3.0)
    assert list(captured_tracers(plain.jaxpr)) == []


def test_is_traced_inside_knows_a_local_tracer_from_a_captured_one():
    seen = {}

    def outer(x):
        seen["own"] = is_traced_inside(x * 2)

        def inner(y):
            seen["inner"] = is_traced_inside(y * 2)
            seen["captured"] = is_traced_inside(x)
            return y

        jax.jit(inner)(1.0)
        return x

    jax.jit(outer)(1.0)
    seen["no trace"] = is_traced_inside(1.0)
    assert seen == {"own": True, "inner": True, "captured": False, "no trace": False}


SETTINGS = {
    "x64": lambda: jax.enable_x64(True),
    "precision": lambda: jax.default_matmul_precision("float32"),
    "promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "mesh": lambda: jax.set_mesh(Mesh(np.asarray(jax.devices()[:2]), ("d",))),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_trace_settings_change_with_what_changes_a_trace(setting):
    before = trace_settings()
    with SETTINGS[setting]():
        inside = trace_settings()
    assert inside != before
    assert hash(trace_settings()) == hash(before)
    assert trace_settings() == before


# -- arrays ------------------------------------------------------------------------------------


def test_concrete_array_is_the_type_of_every_array():
    for array in (jnp.ones(2), on_device(1.0, 3), replicated(1.0), jax.jit(lambda: jnp.ones(2))()):
        assert type(array) is ConcreteArray


def test_uncommitted_arrays_stay_on_their_device_and_mix_with_any_other():
    array = uncommitted(on_device(jnp.arange(3.0), 5))
    assert not array.committed
    assert array.devices() == {jax.devices()[5]}
    total = array + on_device(jnp.ones(3), 2)
    assert total.devices() == {jax.devices()[2]}
    np.testing.assert_array_equal(total, [1, 2, 3])


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16"])
def test_an_uncommitted_scalar_stays_on_its_device_and_mixes_with_any_other(dtype):
    array = on_device(jnp.ones(1, dtype), 5)
    ready = uncommitted_scalar(array.block_until_ready())
    waiting = uncommitted_scalar(array * array)  # perhaps not computed yet
    for scalar in (ready, waiting):
        assert (scalar.shape, scalar.dtype, scalar.weak_type) == ((), array.dtype, False)
        assert scalar.devices() == {jax.devices()[5]}
        assert not scalar.committed
        assert float(scalar + on_device(jnp.ones((), dtype), 3)) >= 1
    keys = uncommitted_scalar(on_device(jax.random.split(jax.random.key(0), 1), 5))
    assert keys.shape == () and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)


def test_uncommitted_shares_the_buffer_and_leaves_the_original_alone():
    original = on_device(jnp.arange(3.0), 5)
    free = uncommitted(original)
    assert free.unsafe_buffer_pointer() == original.unsafe_buffer_pointer()
    assert original.committed
    assert uncommitted(free) is free


def test_uncommitted_works_for_every_dtype_shape_and_for_keys():
    for value in (True, np.int8(1), jnp.bfloat16(2), np.ones((2, 0, 3)), np.complex64(1j)):
        original = on_device(value, 3)
        free = uncommitted(original)
        assert (free.shape, free.dtype) == (original.shape, original.dtype)
        np.testing.assert_array_equal(np.asarray(free), np.asarray(original))
    key = uncommitted(on_device(jax.random.key(7), 3))
    assert not key.committed
    assert float(jax.random.uniform(key)) == float(jax.random.uniform(jax.random.key(7)))


def test_uncommitted_keeps_weak_types():
    weak = jax.device_put(jnp.asarray(1.0), jax.devices()[3])
    assert uncommitted(weak).weak_type == weak.weak_type


def test_one_function_takes_the_first_copies_of_all_arrays_of_one_kind():
    on_one_device = uncommitted_first(on_device(jnp.zeros(3), 5))
    for value in (1.0, 2.0):
        free = on_one_device(on_device(jnp.full(3, value), 5))
        assert not free.committed
        assert free.devices() == {jax.devices()[5]}
        np.testing.assert_array_equal(free, np.full(3, value))
    first = uncommitted_first(replicated(jnp.zeros(3)))(replicated(jnp.arange(3.0)))
    assert not first.committed
    assert first.devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(first, [0, 1, 2])


@pytest.mark.parametrize("place", [replicated, sharded])
def test_shards_are_one_device_arrays_in_mesh_order(place):
    value = np.arange(8.0)
    parts = one_device_arrays(place(value))
    assert [part.devices() for part in parts] == [{device} for device in jax.devices()[:4]]
    expected = [value] * 4 if place is replicated else np.split(value, 4)
    for part, array in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part, array)


def test_shards_of_one_device_arrays_and_of_keys():
    (part,) = one_device_arrays(on_device(1.0, 2))
    assert part.devices() == {jax.devices()[2]}
    keys = one_device_arrays(sharded(jax.random.split(jax.random.key(1), 4)))
    assert len(keys) == 4
    assert all(jnp.issubdtype(key.dtype, jax.dtypes.prng_key) for key in keys)


# -- threads -----------------------------------------------------------------------------------


def in_thread(fn):
    box = []
    thread = threading.Thread(target=lambda: box.append(fn()))
    thread.start()
    thread.join()
    return box[0]


def test_a_thread_gets_the_settings_of_the_one_that_captured():
    def look():
        return jnp.ones((), jnp.float32).dtype.name, trace_settings()

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        surroundings = capture_thread_state()
        expected = trace_settings()
    outside = trace_settings()

    def work():
        with surroundings():
            inside = trace_settings(), jnp.asarray(np.float64(1)).dtype.name
        return inside, trace_settings()

    (inside, dtype), after = in_thread(work)
    assert inside == expected
    assert dtype == "float64"
    assert after == outside
    assert look()[1] == outside


def test_a_thread_gets_the_open_traces_and_the_default_device():
    def outer(x):
        surroundings = capture_thread_state()
        base = current_trace()

        def work():
            with surroundings():
                return current_trace() is base, is_staging(), x * 2

        same, staging, doubled = in_thread(work)
        assert same
        assert staging
        return doubled

    assert float(jax.jit(outer)(3.0)) == 6.0
    with jax.default_device(jax.devices()[4]):
        surroundings = capture_thread_state()

    def work():
        with surroundings():
            return (jnp.ones(2) + 1).devices()

    assert in_thread(work) == {jax.devices()[4]}


def test_a_thread_gets_the_mesh_of_a_shard_map():
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("d",))

    def body(x):
        surroundings = capture_thread_state()

        def work():
            with surroundings():
                return lax.psum(x, "d")

        return in_thread(work)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec())
    np.testing.assert_array_equal(jax.jit(mapped)(jnp.arange(2.0)), [1.0])


# -- devices -----------------------------------------------------------------------------------


def test_has_started_tells_whether_a_backend_runs():
    assert has_started()
    run_fresh(
        """
        import jax
        from replicax.jax_internals.processes import has_started
        assert not has_started()
        jax.devices()
        assert has_started()
        """
    )


# -- clusters ----------------------------------------------------------------------------------


def test_a_slurm_step_tells_a_process_its_place(monkeypatch):
    names = ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID")
    for name in names:
        monkeypatch.delenv(f"SLURM_{name}", raising=False)
    assert slurm_process() is None
    for name, value in zip(names, ("7", "n[1-2]", "4", "3", "1"), strict=True):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert slurm_process() == DetectedProcess(process_id=3, num_processes=4)


def test_a_host_without_tpus_is_in_no_slice(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t-0,t-1")
    assert not is_tpu_host()
    assert gke_tpu_hosts() is None


def test_gke_tells_a_tpu_host_its_slice():
    run_fresh(
        """
        from replicax.jax_internals.processes import gke_tpu_hosts, is_tpu_host
        assert is_tpu_host()
        assert gke_tpu_hosts() == (["t-0", "t-1"], 1)
        """,
        JAX_FORCE_TPU_INIT="1",
        TPU_WORKER_HOSTNAMES="t-0,t-1",
        TPU_WORKER_ID="1",
    )


def test_a_user_context_can_be_set_for_all_threads():
    context = jax.make_user_context(0)
    traces = []
    traced = jax.jit(lambda x: traces.append(context.value) or x)
    for value in (0, 1, 1, 0):
        traces_module.set_everywhere(context, value)
        thread = threading.Thread(target=traced, args=(1.0,))
        thread.start()
        thread.join()
    assert traces == [0, 1]


# -- the room itself ---------------------------------------------------------------------------


def test_every_name_of_the_room_is_tested():
    files = pathlib.Path(__file__).parent.glob("test_*.py")
    source = re.sub(
        r"^ *from \S+ import (\([^)]*\)|.*)",
        "",
        "".join(map(pathlib.Path.read_text, files)),
        flags=re.M,
    )
    names = {
        node.name
        for path in (PACKAGE / "jax_internals").glob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert names - set(re.findall(r"\w+", source)) == set()
