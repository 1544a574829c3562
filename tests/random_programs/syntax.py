"""What a random program is made of: a small language of frozen dataclasses.

`drawing` draws programs, `reference` says what they mean, `source` writes them as Python.
A value is a scalar, a vector of two, or a batch: the component of the step's batch that the
replica has. All arithmetic is in the dtype of the program; a variable of another dtype is
converted where it is read and where it is assigned.
"""

from __future__ import annotations

import dataclasses

VECTOR_SIZE = 2

# -- expressions --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Const:
    value: int


@dataclasses.dataclass(frozen=True)
class Arg:
    """The number that the step got as an argument; the same on all replicas."""


@dataclasses.dataclass(frozen=True)
class ReplicaId:
    pass


@dataclasses.dataclass(frozen=True)
class Local:
    name: str


@dataclasses.dataclass(frozen=True)
class Read:
    """The replica's value of a variable; `form` is how Python code says it."""

    variable: int
    form: str = "value"


@dataclasses.dataclass(frozen=True)
class Knob:
    """`operand` times the number that a captured object stands for."""

    index: int
    operand: Expr


@dataclasses.dataclass(frozen=True)
class Binary:
    operator: str
    left: Expr
    right: Expr


@dataclasses.dataclass(frozen=True)
class Total:
    """The sum of a vector."""

    operand: Expr


@dataclasses.dataclass(frozen=True)
class Spread:
    """A scalar as a vector."""

    operand: Expr


@dataclasses.dataclass(frozen=True)
class BatchSum:
    """The sum of the replica's batch times a scalar."""

    factor: Expr


@dataclasses.dataclass(frozen=True)
class Batch:
    """The replica's batch times a scalar; only as a result of the step."""

    factor: Expr


@dataclasses.dataclass(frozen=True)
class Branch:
    """A Python ``if`` on the replica id: `first` on replica 0, `other` elsewhere."""

    first: Expr
    other: Expr


@dataclasses.dataclass(frozen=True)
class AllReduce:
    op: str
    operand: Expr


@dataclasses.dataclass(frozen=True)
class AllGather:
    """What all replicas have, concatenated, weighted by position and summed: a scalar.

    `is_batch`: the batch times the scalar `operand` is gathered instead of `operand` itself.
    """

    operand: Expr
    is_batch: bool = False


Expr = (
    Const | Arg | ReplicaId | Local | Read | Knob | Binary | Total | Spread | BatchSum | Batch
    | Branch | AllReduce | AllGather
)  # fmt: skip

# -- statements ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Block:
    """The body of a function: `params` are bound to values, the result is `result`."""

    params: tuple[str, ...]
    statements: tuple[Statement, ...]
    result: Expr


@dataclasses.dataclass(frozen=True)
class Let:
    name: str
    value: Expr


@dataclasses.dataclass(frozen=True)
class Assign:
    variable: int
    method: str
    value: Expr


@dataclasses.dataclass(frozen=True)
class Call:
    """``name = kind(block)(*inputs)``.

    Attributes:
        kind: jit, checkpoint, function, custom_jvp or custom_vjp. The rule of the last two says
            that the derivative is `RULES` times the incoming one, whatever the block computes.
        is_hoisted: Whether the callable is made once, outside of the step; then its block refers
            to nothing of the step but its parameters.
    """

    name: str
    kind: str
    block: Block
    inputs: tuple[Expr, ...]
    is_hoisted: bool


RULES = {"custom_jvp": 3, "custom_vjp": 2}


@dataclasses.dataclass(frozen=True)
class Cond:
    """``lax.cond(left > right, yes, no, *inputs)``."""

    name: str
    left: Expr
    right: int
    yes: Block
    no: Block
    inputs: tuple[Expr, ...]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop whose block takes the iteration and the carry, and gives the carry.

    Attributes:
        kind: scan, fori or while.
        count: How many iterations; only ``while`` takes other than a constant, and looks at it
            again before each iteration.
    """

    name: str
    kind: str
    count: Expr
    block: Block
    initial: Expr


@dataclasses.dataclass(frozen=True)
class Grad:
    """A scalar loss and its gradients, bound to `name` and to `gradients`.

    Attributes:
        kind: ``variables`` (rx.value_and_grad), ``inputs`` (jax.value_and_grad), or ``vjp``.
        variables: What is differentiated by, for kind ``variables``.
        inputs: What is differentiated by, for the other kinds.
        between: An assignment after the forward and before the backward pass of ``vjp``.
    """

    name: str
    gradients: tuple[str, ...]
    kind: str
    block: Block
    variables: tuple[int, ...] = ()
    inputs: tuple[Expr, ...] = ()
    between: Assign | None = None


@dataclasses.dataclass(frozen=True)
class Merge:
    """``name = merge_call``: a reduction and then perhaps an assignment to a variable.

    Attributes:
        how: ``reduce``, or ``reduce_to`` with the variable as the destination.
        variable: What the total is assigned to, or None.
        method: How; with the prefix ``update:`` through ``extended.update``.
        read: A variable whose value across replicas is added to the result, or None.
    """

    name: str
    value: Expr
    op: str
    how: str = "reduce"
    variable: int | None = None
    method: str = "assign"
    read: int | None = None


@dataclasses.dataclass(frozen=True)
class Update:
    """``extended.update`` in replica context, with a value that is the same everywhere."""

    variable: int
    method: str
    value: Const | AllReduce


Statement = Let | Assign | Call | Cond | Loop | Grad | Merge | Update

# -- around the run -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CrossAssign:
    """An assignment in cross-replica context, before the run of every step."""

    variable: int
    method: str
    value: int


@dataclasses.dataclass(frozen=True)
class Reduction:
    """``strategy.reduce`` (op SUM or MEAN) or ``gather`` of one output of the run."""

    op: str
    output: int
    axis: int | None


@dataclasses.dataclass(frozen=True)
class Variable:
    """Attributes: `is_vector`, `dtype`, `initial`, `on_read` (else mirrored), `aggregation`."""

    name: str
    is_vector: bool
    dtype: str
    initial: int
    on_read: bool
    aggregation: str

    @property
    def is_float(self):
        return self.dtype != "int32"


@dataclasses.dataclass(frozen=True)
class Step:
    """The arguments of one step.

    Attributes:
        sizes: How many examples each replica has.
        first: The first example; the others follow from it.
        argument: The number.
        knobs: What each captured object stands for.
    """

    sizes: tuple[int, ...]
    first: int
    argument: int
    knobs: tuple[int, ...]

    def examples(self):
        """The batch of each replica, as lists of small integers."""
        values = [(self.first + 3 * i) % 7 - 3 for i in range(sum(self.sizes))]
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        return [values[start : start + n] for start, n in zip(starts, self.sizes, strict=True)]


@dataclasses.dataclass(frozen=True)
class Program:
    """A replica function, the code around its run, and the steps that call it.

    Attributes:
        argument: How the number is passed: float, array, or numpy.
        knobs: What kind of object is captured, for each knob.
        wrapped: How the replica function is passed to `run`: plain, partial or method.
        executors: Which executors the program is run by.
    """

    num_replicas: int
    dtype: str
    variables: tuple[Variable, ...]
    knobs: tuple[str, ...]
    argument: str
    wrapped: str
    before: tuple[CrossAssign, ...]
    body: Block
    outputs: tuple[Expr, ...]
    after: tuple[Reduction, ...]
    reads: tuple[int, ...]
    steps: tuple[Step, ...]
    executors: tuple[str, ...]


MEETINGS = (AllReduce, AllGather)


def children(node):
    """Every dataclass node directly below `node`."""
    found = []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(item):
                found.append(item)
    return found


def nodes(node):
    """`node` and every node below it."""
    yield node
    for child in children(node):
        yield from nodes(child)
