"""Small programs that are always run: each stands for a kind of mistake that was made once.

They also show that the language of `syntax` can say what it takes to find such a mistake.
"""

from __future__ import annotations

from tests.random_programs.syntax import (
    Assign,
    BatchSum,
    Binary,
    Block,
    Call,
    Cond,
    Const,
    Grad,
    Let,
    Local,
    Loop,
    Program,
    Read,
    ReplicaId,
    Step,
    Variable,
)

W, U = 0, 1
ALL = ("eager", "compiled", "inside")
COMPILED = ("compiled", "inside")
STEPS = (Step((1, 1), 0, -1, ()), Step((2, 1), 4, -1, ()), Step((0, 0), 4, -1, ()))


def _program(*statements, outputs, executors=ALL):
    """Two replicas, and the variables w = 3 and u = 3, averaged on write."""
    return Program(
        num_replicas=2,
        dtype="float32",
        variables=tuple(Variable(name, False, "float32", 3, False, "MEAN") for name in "wu"),
        knobs=(),
        argument="float",
        wrapped="plain",
        before=(),
        body=Block((), statements, Const(0)),
        outputs=tuple(map(Local, outputs)),
        after=(),
        reads=(W, U),
        steps=STEPS,
        executors=executors,
    )


def _gradient_by_w(*statements, result):
    return Grad("loss", ("dw",), "variables", Block((), statements, result), variables=(W,))


def _checkpointed(operand, given):
    block = Block(("p",), (), Binary("*", operand, Read(U)))
    return Call("y", "checkpoint", block, (given,), False)


_COUNTED = Block(
    ("i", "c"),
    (Let("y", Read(W)), Assign(W, "assign", Binary("+", Local("y"), Const(1)))),
    Binary("+", Local("c"), Local("y")),
)
_WRITE_IF = Cond(
    "z",
    Const(0),
    1,
    Block(("p",), (Assign(W, "assign", Const(50)),), Local("p")),
    Block(("p",), (), Local("p")),
    (Const(1),),
)

EXAMPLES = {
    "a variable is assigned after a checkpoint has read it": _program(
        _gradient_by_w(
            _checkpointed(Read(W), Const(1)), Assign(U, "assign", Const(100)), result=Local("y")
        ),
        outputs=("loss", "dw"),
    ),
    "a variable is assigned between the passes of a vjp of a checkpoint": _program(
        Grad(
            "loss",
            ("dw",),
            "vjp",
            Block(("q",), (_checkpointed(Local("p"), Local("q")),), Local("y")),
            inputs=(Const(2),),
            between=Assign(U, "assign", Const(100)),
        ),
        outputs=("loss", "dw"),
    ),
    "a loop reads and assigns the variable of the gradient": _program(
        _gradient_by_w(Loop("z", "scan", Const(2), _COUNTED, Const(0)), result=Local("z")),
        outputs=("loss", "dw"),
        executors=COMPILED,
    ),
    "a branch that is not taken assigns the variable of the gradient": _program(
        _gradient_by_w(_WRITE_IF, result=Binary("*", Local("z"), Read(W))),
        outputs=("loss", "dw"),
        executors=COMPILED,
    ),
    "a nested function captures a value of the replica": _program(
        Let("own", Binary("+", ReplicaId(), Const(2))),
        Call(
            "y",
            "function",
            Block(("p",), (), Binary("*", Local("p"), Local("own"))),
            (Const(1),),
            False,
        ),
        outputs=("y",),
    ),
    "an uneven batch meets a variable that jit reads": _program(
        Call(
            "y",
            "jit",
            Block(("p",), (), Binary("*", Local("p"), Read(W))),
            (BatchSum(Const(1)),),
            False,
        ),
        Assign(W, "assign_add", Const(1)),
        outputs=("y",),
    ),
    "a custom rule reads a variable that was assigned": _program(
        Assign(U, "assign_add", Const(1)),
        _gradient_by_w(
            Call(
                "y",
                "custom_jvp",
                Block(("p",), (), Binary("*", Local("p"), Read(U))),
                (Read(W),),
                False,
            ),
            result=Local("y"),
        ),
        outputs=("loss", "dw"),
    ),
}
