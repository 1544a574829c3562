"""Reads a traced program: its collectives, host callbacks, and the variables they belong to.

One walk follows values from the inputs to the outputs. With each value go two sets, as bits of an
int: the collectives that it was computed with, and the inputs that it is a mere part or another
shape of. A collective serves the variables that are written with its result; a gather, those whose
parts it takes. Nothing here runs or compiles anything, or needs devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicax.core.names import REPLICA_AXIS
from replicax.costs.collectives import (
    ALL_DEVICES,
    LOGICAL_DEVICES,
    REPLICAS,
    Collective,
)
from replicax.costs.loops import place_outside
from replicax.costs.primitives import HOST_CALLS, KINDS, MOVES, num_bytes
from replicax.engine.analysis.varying import CALLS
from replicax.jax_internals.primitives import named_axes
from replicax.jax_internals.programs import (
    UNKNOWN_LINE,
    Literal,
    is_ref,
    open_jaxpr,
    scan_counts,
    sub_jaxprs,
    user_line,
)


@dataclasses.dataclass(frozen=True, slots=True)
class HostCall:
    """A callback by which a program reaches Python on the host.

    Attributes:
        kind: The primitive, such as ``pure_callback``.
        num_bytes_to_host: The bytes of its arguments on one device, each time.
        num_bytes_from_host: The bytes of its results on one device, each time.
        count: How often a step calls it on each device; None if that is known at run time only.
        line: The user's ``file:line``.
    """

    kind: str
    num_bytes_to_host: int
    num_bytes_from_host: int
    count: int | None
    line: str


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """What a traced program sends.

    Attributes:
        collectives: In the order of the program.
        host_calls: In the order of the program.
    """

    collectives: tuple[Collective, ...]
    host_calls: tuple[HostCall, ...]


def read_trace(
    jaxpr: Any, inputs: Mapping[int, str] | None = None, outputs: Mapping[int, str] | None = None
) -> Traced:
    """The collectives and host callbacks of a traced program.

    Args:
        jaxpr: The program, open or closed.
        inputs: The names of those of its inputs that are variables, by position.
        outputs: The names of those of its outputs that are new values of variables.

    Returns:
        What it sends. A collective of one device sends nothing, and is left out.

    Example:
        >>> import jax
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> mesh, spec = strategy.extended.mesh.mesh, jax.sharding.PartitionSpec("replica")
        >>> total = jax.shard_map(
        ...     lambda x: jax.lax.psum(x, "replica"), mesh=mesh, in_specs=spec,
        ...     out_specs=jax.sharding.PartitionSpec())
        >>> (found,) = read_trace(jax.make_jaxpr(total)(jax.numpy.ones(6))).collectives
        >>> found.kind, found.num_bytes, found.group_size
        ('all-reduce', 12, 2)
    """
    jaxpr = open_jaxpr(jaxpr)
    walk = _TraceWalk()
    names = dict(inputs or {})
    start = [_Flow(0, 1 << i if i in names else 0) for i in range(len(jaxpr.invars))]
    ends = walk.run(jaxpr, start, _Around({}, 1, False, (), UNKNOWN_LINE))
    return Traced(
        tuple(walk.collectives(names, [flow.served for flow in ends], outputs or {})),
        tuple(walk.host_calls.values()),
    )


@dataclasses.dataclass(slots=True)
class _Flow:
    """What is known of one value.

    Attributes:
        served: Bits of the collectives that it was computed with.
        parts: Bits of the inputs that it is a part of, or another shape.
    """

    served: int = 0
    parts: int = 0

    def join(self, other: _Flow) -> bool:
        """Adds what is known of another value; says whether that was anything new."""
        before = self.served, self.parts
        self.served |= other.served
        self.parts |= other.parts
        return before != (self.served, self.parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Around:
    """Where in a program an equation stands.

    Attributes:
        axes: The sizes of the mesh axes around it.
        count: How often a step comes to it; None if that is not known.
        in_branch: Whether a step may leave it out.
        path: The equations around it.
        line: The user's line of the innermost of these that has one.
        loop: The body of the scan that it is in, with the numbers of its constants and of what it
            carries; None where the equation is in something else inside it, or in no loop.
    """

    axes: Mapping[str, int]
    count: int | None
    in_branch: bool
    path: tuple[Any, ...]
    line: str
    loop: tuple[Any, int, int] | None = None

    def inside(
        self, eqn: Any, *, times: int | None = 1, in_branch: bool = False, part: int = 0
    ) -> _Around:
        count = None if self.count is None or times is None else self.count * times
        axes = self.axes
        if eqn.primitive.name == "shard_map":
            axes = {**axes, **dict(eqn.params["mesh"].shape)}
        path, loop = (*self.path, id(eqn), part), None
        if eqn.primitive.name == "scan" and eqn.params["length"] > 1:
            loop = open_jaxpr(eqn.params["jaxpr"]), *scan_counts(eqn)
        return _Around(axes, count, self.in_branch or in_branch, path, self.line_of(eqn), loop)

    def line_of(self, eqn: Any) -> str:
        """The user's line of an equation here; JAX keeps none in what it has traced before."""
        line = user_line(eqn)
        return self.line if line == UNKNOWN_LINE else line


class _TraceWalk:
    """One walk over a program; loops are walked until nothing new is found.

    Attributes:
        host_calls: The callbacks found so far, by their place.
    """

    def __init__(self) -> None:
        self.host_calls: dict[Any, HostCall] = {}
        self._numbers: dict[Any, int] = {}  # of the collectives, by their place
        self._found: list[tuple[Collective, int, bool]] = []  # with the parts that it takes
        self._large = 0  # bits of the collectives of more than one number

    def collectives(
        self, names: Mapping[int, str], ends: Sequence[int], outputs: Mapping[int, str]
    ) -> Iterator[Collective]:
        """What was found, with the variables that each serves."""
        for number, (found, parts, gathers) in enumerate(self._found):
            gathered = [name for i, name in names.items() if gathers and parts >> i & 1]
            written = [name for i, name in outputs.items() if ends[i] >> number & 1]
            yield dataclasses.replace(found, variables=tuple(gathered or written))

    def run(self, jaxpr: Any, values: Sequence[_Flow], place: _Around) -> list[_Flow]:
        """What is known of the outputs of `jaxpr`, from what is known of its inputs."""
        env: dict[Any, _Flow] = {var: _Flow() for var in jaxpr.constvars}
        env.update(zip(jaxpr.invars, values, strict=True))

        def read(atom: Any) -> _Flow:
            return _Flow() if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            outs = self._equation(eqn, [read(atom) for atom in eqn.invars], place)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, values: list[_Flow], place: _Around) -> list[_Flow]:
        name = eqn.primitive.name
        if name in ("swap", "addupdate"):
            values[0].join(values[1])
            return [_Flow(values[0].served, values[0].parts) for _ in eqn.outvars]
        if name == "cond":
            return self._cond(eqn, values, place)
        if name == "scan":
            return self._scan(eqn, values, place)
        if name == "while":
            return self._while(eqn, values, place)
        if name in CALLS:
            body = open_jaxpr(eqn.params[CALLS[name]])
            return self.run(body, values, place.inside(eqn))
        kind = KINDS.get(name.removesuffix("_start"))
        if kind is not None:
            return self._collective(eqn, kind, values, place)
        if name in HOST_CALLS:
            self._host_call(eqn, place)
        return self._other(eqn, values, place)

    def _other(self, eqn: Any, values: list[_Flow], place: _Around) -> list[_Flow]:
        """A primitive without a rule, a function of all its inputs."""
        for part, body in enumerate(sub_jaxprs(eqn.params)):  # how they are called is not known
            inner = place.inside(eqn, times=None, part=part)
            self.run(body, [_Flow() for _ in body.invars], inner)
        joined = _Flow()
        for value in values:
            joined.join(value)
        if eqn.primitive.name in MOVES:
            return [_Flow(joined.served, joined.parts) for _ in eqn.outvars]
        for atom, value in zip(eqn.invars, values, strict=True):
            if is_ref(atom):
                value.join(joined)
        sizes = [math.prod(getattr(atom.aval, "shape", ())) for atom in eqn.invars]
        outs = []
        for var in eqn.outvars:
            # A number made of a large value, such as a norm, says nothing of its elements.
            is_number = math.prod(getattr(var.aval, "shape", ())) == 1 and max(sizes, default=1) > 1
            outs.append(_Flow(joined.served & ~self._large if is_number else joined.served))
        return outs

    def _collective(self, eqn: Any, kind: str, values: list[_Flow], place: _Around) -> list[_Flow]:
        axes = [axis for axis in named_axes(eqn) if isinstance(axis, str)]
        groups = eqn.params.get("axis_index_groups")
        size = math.prod(place.axes.get(axis, 1) for axis in axes)
        size = len(groups[0]) if groups else size
        if size <= 1:
            return values[: len(eqn.outvars)]
        number = self._number(eqn, kind, axes, size, values, place)
        bit = 1 << number
        return [_Flow(value.served | bit) for value in _spread(values, len(eqn.outvars))]

    def _number(
        self,
        eqn: Any,
        kind: str,
        axes: Sequence[str],
        size: int,
        values: Sequence[_Flow],
        place: _Around,
    ) -> int:
        """The number of a collective, which is noted when it is first seen."""
        key = (*place.path, id(eqn))
        parts = 0
        for value in values:
            parts |= value.parts
        number = self._numbers.get(key)
        if number is not None:
            found, before, gathers = self._found[number]
            self._found[number] = found, before | parts, gathers
            return number
        number = self._numbers[key] = len(self._found)
        operands = [atom for atom in eqn.invars if getattr(atom.aval, "dtype", None) is not None]
        over = REPLICAS if set(axes) == {REPLICA_AXIS} else LOGICAL_DEVICES
        if REPLICA_AXIS in axes and len(axes) > 1:
            over = ALL_DEVICES
        collective = Collective(
            kind,
            tuple(map(num_bytes, operands)),
            tuple(sorted({str(atom.aval.dtype) for atom in operands})),
            size,
            over,
            place.count,
            place.in_branch,
            place.line_of(eqn),
            could_be=None if place.loop is None else _outside(eqn, *place.loop),
        )
        self._found.append((collective, parts, kind == "all-gather"))
        if max((math.prod(atom.aval.shape) for atom in operands), default=0) > 1:
            self._large |= 1 << number
        return number

    def _host_call(self, eqn: Any, place: _Around) -> None:
        key = (*place.path, id(eqn))
        self.host_calls[key] = HostCall(
            eqn.primitive.name,
            sum(num_bytes(atom) for atom in eqn.invars),
            sum(num_bytes(var) for var in eqn.outvars),
            place.count,
            place.line_of(eqn),
        )

    def _cond(self, eqn: Any, values: list[_Flow], place: _Around) -> list[_Flow]:
        outs = [_Flow() for _ in eqn.outvars]
        for part, branch in enumerate(eqn.params["branches"]):
            inner = place.inside(eqn, in_branch=True, part=part)
            found = self.run(open_jaxpr(branch), values[1:], inner)
            for out, flow in zip(outs, found, strict=True):
                out.join(flow)
        return outs

    def _scan(self, eqn: Any, values: list[_Flow], place: _Around) -> list[_Flow]:
        params = eqn.params
        num_consts, num_carry = scan_counts(eqn)
        body, inner = open_jaxpr(params["jaxpr"]), place.inside(eqn, times=params["length"])
        carry = [
            value if is_ref(atom) else _Flow(value.served, value.parts)
            for atom, value in zip(
                eqn.invars[num_consts:][:num_carry], values[num_consts:][:num_carry], strict=True
            )
        ]
        around = values[:num_consts], values[num_consts + num_carry :]
        while True:
            before = [(value.served, value.parts) for value in values]
            outs = self.run(body, [*around[0], *carry, *around[1]], inner)
            news = [old.join(new) for old, new in zip(carry, outs, strict=False)]
            if not any(news) and before == [(value.served, value.parts) for value in values]:
                return [*carry, *outs[num_carry:]]

    def _while(self, eqn: Any, values: list[_Flow], place: _Around) -> list[_Flow]:
        params = eqn.params
        num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
        cond_consts, body_consts = values[:num_cond], values[num_cond:][:num_body]
        carry = [_Flow(value.served, value.parts) for value in values[num_cond + num_body :]]
        cond, body = open_jaxpr(params["cond_jaxpr"]), open_jaxpr(params["body_jaxpr"])
        while True:
            before = [(value.served, value.parts) for value in values]
            self.run(cond, [*cond_consts, *carry], place.inside(eqn, times=None, part=1))
            outs = self.run(body, [*body_consts, *carry], place.inside(eqn, times=None))
            news = [old.join(new) for old, new in zip(carry, outs, strict=True)]
            if not any(news) and before == [(value.served, value.parts) for value in values]:
                return carry


def _spread(values: Sequence[_Flow], count: int) -> Sequence[_Flow]:
    """What is known of each of so many outputs: of its own input, if there is one for each."""
    if len(values) == count:
        return values
    joined = _Flow()
    for value in values:
        joined.join(value)
    return [joined] * count


def _outside(eqn: Any, body: Any, num_consts: int, num_carry: int) -> str | None:
    return place_outside(eqn, body, num_consts=num_consts, num_carry=num_carry)
