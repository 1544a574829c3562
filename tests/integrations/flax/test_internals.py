"""What of Flax NNX that is not public the integration relies on; a release may change it."""

import types

import jax
import jax.numpy as jnp
from flax import nnx

import replicax as rx
from replicax.integrations.flax import internals


def test_a_variable_keeps_its_value_and_its_trace_in_slots():
    with rx.MirroredStrategy(["CPU:0"]).scope():
        pass  # connects NNX
    for descriptor in (internals._value, internals._trace):
        assert isinstance(descriptor, types.MemberDescriptorType)
    variable = nnx.Param(jnp.ones(2))
    assert internals.stored(variable) is variable.get_raw_value()
    assert internals.trace_state(variable) == internals.here()


def test_nnx_reads_and_assigns_by_these_names_only():
    seen = []

    class Watched(nnx.Param):
        @property
        def _raw_value(self):
            seen.append("read")
            return internals.stored(self)

        @_raw_value.setter
        def _raw_value(self, value):
            seen.append("assigned")
            internals.store(self, value)

    module = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    module.kernel = Watched(module.kernel.get_raw_value())

    def double(module):
        module.kernel[...] *= 2

    for use in (nnx.jit(double), nnx.remat(double), double):
        seen.clear()
        before = jnp.array(module.kernel[...])
        use(module)
        assert {"read", "assigned"} <= set(seen)
        assert jnp.array_equal(module.kernel[...], 2 * before)


def test_one_metaclass_makes_all_that_has_variables():
    for kind in (nnx.Linear, nnx.Optimizer, nnx.Rngs, nnx.metrics.Average):
        assert isinstance(kind, internals.TREE_METACLASS)


def test_plain_variables_are_as_without_a_strategy():
    variable = nnx.Param(jnp.arange(3.0))
    variable[...] += 1
    assert jnp.array_equal(variable[...], jnp.array([1.0, 2.0, 3.0]))
    (leaf,) = jax.tree.leaves(variable)
    assert leaf is variable.get_raw_value()
