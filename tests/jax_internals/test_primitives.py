"""The table of primitives that name a mesh axis is that of the JAX that is installed."""

import functools
import inspect
import sys
import types

import jax
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from replicax.engine.analysis.varying import CALLS, UnknownCollectiveError, analyse
from replicax.jax_internals.primitives import AXES_OF, Primitive, named_axes, names_unknown

COLLECTIVES = "jax._src.lax.parallel"


def functions_in(value, depth=0):
    """The Python functions that a function is made of."""
    if depth > 4:
        return
    if isinstance(value, functools.partial):
        yield from functions_in(value.func, depth + 1)
    elif isinstance(value, types.FunctionType):
        yield value
        for cell in value.__closure__ or ():
            yield from functions_in(cell.cell_contents, depth + 1)


def axis_parameter(primitive):
    """The parameter of a primitive of JAX that has mesh axes, as the rule for its type says."""
    for function in functions_in(primitive.abstract_eval):
        parameters = inspect.signature(function).parameters
        if "axis_name" in parameters:
            return "axis_name"
        if "axes" in parameters and function.__module__ == COLLECTIVES:
            return "axes"
    return None


def primitives():
    """All primitives of the modules of JAX that are loaded."""
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "jax"]
    things = {id(thing): thing for m in modules for thing in vars(m).values()}
    found = [thing for thing in things.values() if isinstance(thing, Primitive)]
    assert len(found) > 200
    return found


def test_the_table_has_every_primitive_of_jax_that_takes_an_axis_name():
    taking = {p.name: name for p in primitives() if (name := axis_parameter(p)) is not None}
    assert taking["psum"] == "axes"
    assert taking["ppermute"] == "axis_name"
    assert {name: AXES_OF.get(name) for name in taking} == taking


def test_the_table_has_every_collective_that_jax_starts_and_awaits_apart():
    module = inspect.getmodule(jax.lax.psum)
    named = {v.name for v in vars(module).values() if isinstance(v, Primitive)}
    assert {name for name in named if not name.endswith("_done")} - set(AXES_OF) == set()


def test_every_name_that_is_looked_through_is_one_of_jax():
    names = {primitive.name for primitive in primitives()}
    became_one = {"call", "closed_call"}  # since JAX 0.11: "eval_jaxpr"
    assert set(CALLS) - names in (set(), became_one)


def jaxpr_of(primitive, **params):
    def body(x):
        return primitive.bind(x, **params)

    mesh = jax.make_mesh((2,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("replica")
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"replica"}, check_vma=False
    )
    (equation,) = jax.make_jaxpr(mapped)(jax.numpy.ones(4)).jaxpr.eqns
    return equation.params["jaxpr"]


def new_primitive(name):
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x, **params: x)
    return primitive


@pytest.mark.parametrize(
    "params",
    [{"over": "replica"}, {"mesh_axes": ("replica",)}, {"axis_name": ("replica",)}],
    ids=str,
)
def test_an_operation_that_names_the_axis_and_is_not_known_is_refused(params):
    jaxpr = jaxpr_of(new_primitive("newest_collective"), **params)
    with pytest.raises(
        UnknownCollectiveError,
        match=r"newest_collective at .*test_primitives.py:\d+ names the axis",
    ):
        analyse(jaxpr, [True], axis="replica")


def test_a_collective_whose_parameter_has_another_name_is_refused():
    jaxpr = jaxpr_of(new_primitive("psum"), reduced_axes=("replica",))
    with pytest.raises(UnknownCollectiveError, match=r"psum at .* names the axis 'replica'"):
        analyse(jaxpr, [True], axis="replica")


def test_a_name_that_the_user_gives_to_a_value_is_no_axis():
    named = functools.partial(checkpoint_name, name="replica")
    (equation,) = jax.make_jaxpr(named)(1.0).jaxpr.eqns
    assert not names_unknown(equation, "replica")
    assert named_axes(equation) == ()
