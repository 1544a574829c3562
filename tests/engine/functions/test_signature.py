"""`input_signature`: what is accepted, what is converted, and what each refusal says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import SignatureError


def spec(*shape, dtype="float32"):
    return rx.TensorSpec(shape, dtype)


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def test_matching_arguments_pass_and_none_dims_match_any_size():
    step = rx.function(lambda x: x.sum(), input_signature=[spec(None, 2)])
    assert float(step(jnp.ones((3, 2)))) == 6.0
    assert float(step(jnp.ones((5, 2)))) == 10.0
    assert float(step(np.ones((0, 2), np.float32))) == 0.0


def test_a_shape_of_none_matches_any_shape():
    step = rx.function(lambda x: x.sum(), input_signature=(rx.TensorSpec(None, "float32"),))
    assert float(step(jnp.ones((3, 2)))) == 6.0
    assert float(step(jnp.ones(()))) == 1.0


def test_shape_dtype_structs_are_specs_too():
    step = rx.function(lambda x: x.sum(), input_signature=[jax.ShapeDtypeStruct((2,), jnp.int32)])
    assert int(step(jnp.arange(2))) == 1
    with pytest.raises(SignatureError, match=r"has shape \(3,\) and dtype int32, which does not m"):
        step(jnp.arange(3))


def test_nests_of_specs_are_checked_leaf_by_leaf():
    step = rx.function(
        lambda batch, scale: batch["x"].sum() * scale + batch["y"][0].sum(),
        input_signature=[{"x": spec(None), "y": (spec(2),)}, spec()],
    )
    assert float(step({"x": jnp.ones(3), "y": (jnp.ones(2),)}, 2.0)) == 8.0
    with pytest.raises(
        SignatureError, match=r"argument \[0\]\['y'\]\[0\] of '.*' has shape \(3,\).*shape=\(2,\)"
    ):
        step({"x": jnp.ones(3), "y": (jnp.ones(3),)}, 2.0)


def test_numbers_are_converted_to_the_declared_dtype():
    seen = []

    @rx.function(input_signature=[spec(), spec(dtype="int32")])
    def step(x, n):
        seen.append((x.dtype.name, x.shape, n.dtype.name))
        return x * n

    assert float(step(2, 3)) == 6.0
    assert float(step(2.5, 4)) == 10.0
    assert seen == [("float32", (), "int32")]


def test_a_variable_is_checked_and_passed_on_as_it_is():
    v = rx.Variable(jnp.ones(2))
    step = rx.function(lambda v: v.assign_add(jnp.ones(2)), input_signature=[spec(2)])
    assert step(v) is v
    with pytest.raises(SignatureError, match=r"has shape \(3,\) and dtype float32"):
        step(rx.Variable(jnp.ones(3)))


def test_64_bit_host_arrays_count_as_what_jax_makes_of_them():
    step = rx.function(lambda x: x, input_signature=[spec(2)])
    assert step(np.ones(2)).dtype == jnp.float32


def test_methods_are_checked_too():
    class Model:
        @rx.function(input_signature=[spec(2)])
        def step(self, x):
            return x.sum()

    assert float(Model().step(jnp.ones(2))) == 2.0
    with pytest.raises(SignatureError, match=r"Model\.step.* has shape \(3,\)"):
        Model().step(jnp.ones(3))


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda: jnp.ones(3), r"argument \[0\] of '.*' has shape \(3,\) and dtype float32, which"),
        (lambda: jnp.ones((2, 1)), r"has shape \(2, 1\) and dtype float32"),
        (lambda: jnp.ones(2, jnp.int32), r"has shape \(2,\) and dtype int32, which does not"),
        (lambda: "text", r"argument \[0\] of '.*' is 'text'; its input_signature declares Tensor"),
        (lambda: {"a": 1.0}, r"have the structure .*'a'.*, but its input_signature declares"),
        (lambda: 1.0, r"has shape \(\) and dtype float32"),
    ],
    ids=["size", "rank", "dtype", "no array", "structure", "number"],
)
def test_what_does_not_match_is_refused(value, text):
    step = rx.function(lambda x: x, input_signature=[spec(2)])
    with pytest.raises(SignatureError, match=text):
        step(value())
    assert step(jnp.ones(2)).shape == (2,)


def test_a_mismatch_says_what_to_do():
    step = rx.function(lambda x: x, input_signature=[spec(2)])
    with pytest.raises(ValueError, match="Pass a matching value, or declare unknown dims as None"):
        step(jnp.ones(3))


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, r"signature of 1 positional arguments; got 0 and keywords \[\]"),
        ((1.0, 2.0), {}, r"got 2 and keywords \[\]"),
        ((), {"x": 1.0}, r"got 0 and keywords \['x'\]"),
    ],
)
def test_the_number_of_arguments_is_checked(args, kwargs, text):
    step = rx.function(lambda x: x, input_signature=[spec()])
    with pytest.raises(SignatureError, match=text):
        step(*args, **kwargs)


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (spec(2), r"is TensorSpec\(shape=\(2,\).*\); expected a list with one spec"),
        ({"x": spec(2)}, "expected a list with one spec"),
        ([3], "contains 3; expected TensorSpec, PerReplicaSpec or jax.ShapeDtypeStruct"),
        ([{"x": "float32"}], "contains 'float32'; expected TensorSpec"),
    ],
)
def test_what_is_no_signature_is_refused_at_once(signature, text):
    with pytest.raises(SignatureError, match=text):
        rx.function(lambda x: x, input_signature=signature)


# -- per replica -------------------------------------------------------------------------------


def test_a_spec_is_checked_against_every_component(strategy):
    step = rx.function(
        lambda x: strategy.reduce("SUM", x, axis=0), input_signature=[spec(None, dtype="float32")]
    )
    assert float(step(strategy.distribute_batch(np.ones(5, np.float32)))) == 5.0
    strict = rx.function(lambda x: x, input_signature=[spec(3)])
    with pytest.raises(SignatureError, match=r"has shape \(2,\) and dtype float32"):
        strict(strategy.distribute_batch(np.ones(5, np.float32)))


def test_a_per_replica_spec_declares_each_component(strategy):
    signature = [rx.PerReplicaSpec(spec(3), spec(2))]
    step = rx.function(lambda x: strategy.reduce("SUM", x, axis=0), input_signature=signature)
    assert float(step(strategy.distribute_batch(np.ones(5, np.float32)))) == 5.0
    with pytest.raises(SignatureError, match=r"has shape \(3,\).*TensorSpec\(shape=\(2,\)"):
        step(strategy.distribute_batch(np.ones(6, np.float32)))


@pytest.mark.parametrize("inside", [False, True], ids=["run of it", "called in run"])
def test_in_replica_context_a_per_replica_spec_is_checked_against_the_component(strategy, inside):
    signature = [rx.PerReplicaSpec(spec(None, 2), spec(None, 2))]

    @rx.function(input_signature=signature)
    def step(x):
        return x.sum()

    fn = (lambda x: step(x)) if inside else step
    batch = strategy.distribute_batch(np.ones((5, 2), np.float32))
    results = strategy.experimental_local_results(strategy.run(fn, args=(batch,)))
    assert [float(x) for x in results] == [6.0, 4.0]
    with pytest.raises(SignatureError, match=r"has shape \(3, 3\) and dtype float32"):
        strategy.run(fn, args=(strategy.distribute_batch(np.ones((6, 3), np.float32)),))


def test_a_per_replica_spec_for_another_number_of_replicas_is_refused(strategy):
    step = rx.function(lambda x: x, input_signature=[rx.PerReplicaSpec(spec(2))])
    with pytest.raises(SignatureError, match="has 2 components, but its input_signature declares"):
        step(strategy.distribute_batch(np.ones(4, np.float32)))


def test_a_signature_is_checked_inside_another_function(strategy):
    inner = rx.function(lambda x: x.sum(), input_signature=[spec(2)])
    outer = rx.function(lambda x: inner(x))
    assert float(outer(jnp.ones(2))) == 2.0
    with pytest.raises(SignatureError, match=r"has shape \(3,\)"):
        outer(jnp.ones(3))
    in_run = rx.function(lambda x: strategy.run(inner, args=(x,)))
    with pytest.raises(SignatureError, match=r"has shape \(3,\)"):
        in_run(strategy.distribute_batch(np.ones(6, np.float32)))
