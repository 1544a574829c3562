"""Makes a program without Python of one compiled function.

The function is traced once, as one replica outside of every strategy. Each variable that it
touches is an input of the program, and an output too where it is assigned: so the program is the
same whatever strategy the variables belong to. `saving` is the caller.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from replicax.backend import placement
from replicax.checkpoint.errors import SavedModelError, reason_of
from replicax.core import nest
from replicax.core.spec import PerReplicaSpec, TensorSpec
from replicax.engine.analysis.varying import refuse_repeated_writes
from replicax.engine.contexts import stack
from replicax.engine.functions.function import Function
from replicax.engine.trace.frame import Frame
from replicax.jax_internals.programs import InconclusiveDimension, eval_jaxpr
from replicax.saved_model import structure
from replicax.strategies import current
from replicax.variables.construction import stand_in
from replicax.variables.variable import Variable

BATCH = "batch"
"""The symbol for the first dim of all arguments that leave it open."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExportedFunction:
    """A function that needs no Python any more.

    Attributes:
        program: What ``jax.export`` made, serialized.
        stablehlo: The StableHLO in it, by itself.
        read: The variables that are its first inputs, in their order.
        written: Those whose new values are its first outputs.
        arguments: Shape and dtype of each further input; None is a dim of any size.
        results: Shape and dtype of each further output; a string is a size in terms of inputs.
        inputs: The structure of the arguments.
        outputs: The structure of the result.
        differentiable: Whether gradients can be taken through it.
        platforms: Where it runs.
    """

    program: bytes
    stablehlo: bytes
    read: list[Variable]
    written: list[Variable]
    arguments: list[dict[str, Any]]
    results: list[dict[str, Any]]
    inputs: Any
    outputs: Any
    differentiable: bool
    platforms: list[str]


class _Touched:
    """The variables that a trace touches, each with an undistributed one in its place."""

    def __init__(self) -> None:
        self._of: dict[int, Variable] = {}
        self._variables: dict[Any, Variable] = {}

    def stand_in(self, variable: Variable) -> Variable:
        """What is read and assigned in place of `variable`."""
        if variable._storage in self._variables:
            return variable  # it stands in already
        found = self._of.get(id(variable))
        if found is None:
            found = self._of[id(variable)] = stand_in(Variable, variable)
            self._variables[found._storage] = variable
        return found

    def variable(self, key: Any) -> Variable | None:
        """The variable that a piece of state stands for."""
        return self._variables.get(key)


def export_function(
    name: str, fn: Function[..., Any], platforms: Sequence[str]
) -> ExportedFunction:
    """Exports `fn`, which has an input signature.

    Args:
        name: What to call it in errors.
        fn: The function.
        platforms: Where it shall run.

    Raises:
        SavedModelError: If it cannot be exported; says why.
    """
    arguments = _specs_of(name, fn)
    inputs = structure.to_json(fn.input_signature, f"the input_signature of {name!r}")
    leaves = jax.tree_util.tree_structure(
        structure.from_json(inputs, itertools.repeat(0))
    )  # of our own classes, as they will be when it is loaded
    shapes = _symbolic(arguments)
    touched, box = _Touched(), []
    frame = Frame(in_replica=False)
    frame.stand_in = touched.stand_in

    def traced(*arrays: Any) -> Any:
        with frame.tracing(), stack.replaced_by(_alone()):
            result = fn.python_function(*jax.tree_util.tree_unflatten(leaves, arrays))
            box.append(structure.to_json(result, f"the result of {name!r}"))
            outputs = [_as_array(name, leaf) for leaf in nest.flatten(result)[0]]
            return frame.written_values(), outputs

    try:
        closed = jax.make_jaxpr(traced)(*shapes)
        jaxpr = frame.program(closed.jaxpr)
    except InconclusiveDimension as error:
        _require_one_replica(name, frame, touched)  # whose way of dividing a batch may have asked
        raise SavedModelError(
            f"function {name!r} cannot be saved for every size of the dims that its "
            f"input_signature leaves open: {reason_of(error)}. Declare these sizes, or write the "
            "function so that it works for all of them."
        ) from error
    _require_one_replica(name, frame, touched)
    refuse_repeated_writes(jaxpr)
    consts = [placement.one_device(c) if isinstance(c, jax.Array) else c for c in closed.consts]

    def program(state: list[Any], arrays: list[Any]) -> Any:
        values = eval_jaxpr(jaxpr, consts, *state, *arrays)
        return values[: len(frame.written)], values[len(frame.written) :]

    state = [jax.ShapeDtypeStruct(key.global_shape, key.dtype) for key in frame.entered]
    try:
        exported = export.export(jax.jit(program), platforms=list(platforms))(state, shapes)
    except Exception as error:  # of any class: what JAX cannot lower, for any platform
        raise SavedModelError(
            f"function {name!r} cannot be exported for {list(platforms)}: {reason_of(error)}"
        ) from error
    serialized, differentiable = _serialized(exported)
    results = exported.out_avals[len(frame.written) :]
    return ExportedFunction(
        program=serialized,
        stablehlo=bytes(exported.mlir_module_serialized),
        read=_variables(frame.entered, touched),
        written=_variables(frame.written, touched),
        arguments=arguments,
        results=[{"shape": _sizes(aval.shape), "dtype": aval.dtype.name} for aval in results],
        inputs=inputs,
        outputs=box[0],
        differentiable=differentiable,
        platforms=list(exported.platforms),
    )


def _alone() -> stack.Entry:
    """Where a saved function runs: one replica, and no strategy."""
    return stack.Entry(current.DEFAULT, stack.Mode.REPLICA, replica_context=current.ALONE)


def _variables(keys: Sequence[Any], touched: _Touched) -> list[Variable]:
    found = [touched.variable(key) for key in keys]
    return [variable for variable in found if variable is not None]


def _require_one_replica(name: str, frame: Frame, touched: _Touched) -> None:
    if frame.created:
        names = sorted({variable.name for variable, _ in frame.created})
        raise SavedModelError(
            f"function {name!r} creates variables {names} when it is called. Create them before, "
            "or call the function once, and save then."
        )
    if frame.meshes or any(touched.variable(key) is None for key in frame.entered):
        raise SavedModelError(
            f"function {name!r} calls run, reduce or another verb of a strategy, whose replicas a "
            "saved model does not have. Save the replica function, and call run after loading."
        )


def _specs_of(name: str, fn: Function[..., Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for spec in jax.tree_util.tree_leaves(fn.input_signature, is_leaf=_is_spec):
        if isinstance(spec, PerReplicaSpec) or spec.shape is None:
            raise SavedModelError(
                f"the input_signature of {name!r} has {spec}; a saved model needs a TensorSpec "
                "with a known number of dims. Dims of any size may be None."
            )
        shape = [None if size is None else int(size) for size in spec.shape]
        dtype = jax.dtypes.canonicalize_dtype(spec.dtype).name
        found.append({"shape": shape, "dtype": dtype})
    return found


def _is_spec(node: object) -> bool:
    return isinstance(node, (TensorSpec, PerReplicaSpec, jax.ShapeDtypeStruct))


def _symbolic(arguments: Sequence[dict[str, Any]]) -> list[jax.ShapeDtypeStruct]:
    """The arguments with symbols for open dims: one for all first dims, others of their own."""
    scope, number = export.SymbolicScope(), itertools.count()
    shapes: list[jax.ShapeDtypeStruct] = []
    for argument in arguments:
        sizes = [
            str(size) if size is not None else BATCH if dim == 0 else f"size{next(number)}"
            for dim, size in enumerate(argument["shape"])
        ]
        shape = export.symbolic_shape(f"({','.join([*sizes, ''])})" if sizes else "()", scope=scope)
        shapes.append(jax.ShapeDtypeStruct(shape, argument["dtype"]))
    return shapes


def _as_array(name: str, leaf: Any) -> Any:
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError):
        raise SavedModelError(
            f"function {name!r} returns {leaf!r}; a saved function returns arrays and numbers."
        ) from None


def _sizes(shape: Sequence[Any]) -> list[int | str]:
    return [size if isinstance(size, int) else str(size) for size in shape]


def _serialized(exported: export.Exported) -> tuple[bytes, bool]:
    """The program, with its gradient if it has one."""
    try:
        return bytes(exported.serialize(vjp_order=1)), True
    except ImportError:
        raise
    except Exception:  # of any class: JAX differentiates the whole program
        return bytes(exported.serialize()), False
