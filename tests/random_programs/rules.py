"""What an executor may or must refuse, by the rules of the library.

An eager run cannot meet inside a trace, nor hold a ``merge_call`` under a gradient; it says so.
A few things may work or be refused with an error that teaches: they are listed here, so that the
generator can draw them.
"""

from __future__ import annotations

import dataclasses

from tests.random_programs.syntax import (
    RULES,
    AllGather,
    AllReduce,
    Arg,
    Assign,
    Batch,
    BatchSum,
    Branch,
    Call,
    Cond,
    Grad,
    Local,
    Loop,
    Merge,
    Program,
    Read,
    Update,
    children,
    nodes,
)

_TRACED_CALLS = ("jit", "checkpoint")


# What the errors say, each of which teaches something else.
MEETING_IN_TRACE = "replicax.function"
ASSIGNED_IN_GRADIENT = "is differentiated, and assigned inside a loop or a branch"
ASSIGNED_PREDICATE = "the predicate and the body of the while loop"
# Under a gradient JAX moves what does not change out of a loop, collectives too. Where replicas
# have traces of their own, that may happen on some of them only.
HOISTED = "All replicas must call the same collectives"

# Each eager replica makes an array of its own from the step's argument. A nested function that
# captures it cannot know that they are all equal.
DIFFERS = "differ between replicas"


def refusals(program: Program, executor: str) -> set[str]:
    """What the error may say that this executor must raise; empty if the program runs."""
    found = set()
    if executor == "eager" and _is_refused(program.body, False, False, program):
        found.add(MEETING_IN_TRACE)
    for node in nodes(program.body):
        if isinstance(node, Grad) and _assigned_in_loops_only(node):
            found.add(ASSIGNED_IN_GRADIENT)
        if isinstance(node, Loop) and node.kind == "while":
            read = {n.variable for n in nodes(node.count) if isinstance(n, Read)}
            if read & _assigned(node.block):
                found.add(ASSIGNED_PREDICATE)
    return found


def _assigned(node):
    """The variables that code assigns."""
    return {n.variable for n in nodes(node) if isinstance(n, Assign | Update | Merge)} - {None}


def _assigned_in_loops(gradient):
    """The variables that are differentiated, and assigned by loops and branches."""
    inside = [n for n in nodes(gradient.block) if isinstance(n, Cond | Loop)]
    return set().union(*map(_assigned, inside)) & set(gradient.variables)


def _assigned_in_loops_only(gradient):
    """Those of them that no assignment outside may have replaced before."""
    return _assigned_in_loops(gradient) - _assigned_outside(gradient.block)


def _branches_in_loops(gradient):
    """Whether loops in it have collectives, and Python that branches on the replica id."""
    meetings = Assign | Update | AllReduce | AllGather | Merge
    return any(
        any(isinstance(n, Branch) for n in nodes(loop.block))
        and any(isinstance(n, meetings) for n in nodes(loop.block))
        for loop in nodes(gradient.block)
        if isinstance(loop, Loop)
    )


def _assigned_outside(node):
    """The variables that are assigned outside of loops and branches."""
    if isinstance(node, Cond | Loop):
        return set()
    if isinstance(node, Assign | Update | Merge):
        return {node.variable} - {None}
    return set().union(*map(_assigned_outside, children(node)))


def _is_refused(node, traced, in_grad, program):
    """Whether an eager run refuses something in `node`."""
    if isinstance(node, Assign | Update | AllReduce | AllGather | Merge) and traced:
        return True
    if isinstance(node, Merge) and in_grad:
        return True
    if isinstance(node, Call) and node.kind == "function" and not traced and not in_grad:
        return any(_is_refused(e, traced, in_grad, program) for e in node.inputs)  # compiled
    inside = traced or isinstance(node, Cond | Loop)
    inside = inside or (isinstance(node, Call) and node.kind in _TRACED_CALLS)
    for child in children(node):
        is_body = dataclasses.is_dataclass(child) and type(child).__name__ == "Block"
        own = (inside, in_grad or isinstance(node, Grad)) if is_body else (traced, in_grad)
        if _is_refused(child, *own, program):
            return True
    return False


def may_refuse(program: Program, executor: str, error: Exception) -> bool:
    """Whether this error is one of those that may stand in the place of a result."""
    text = str(error)
    gradients = [n for n in nodes(program.body) if isinstance(n, Grad)]
    if ASSIGNED_IN_GRADIENT in text and any(map(_assigned_in_loops, gradients)):
        return True
    if HOISTED in text and any(map(_branches_in_loops, gradients)):
        return True
    may_capture = executor == "eager" and program.num_replicas > 1
    if may_capture and "capture" in text and _captures_own_values(program.body):
        return True
    if may_capture and DIFFERS in text and _captures_converted_argument(program):
        return True
    custom = [n for n in nodes(program.body) if isinstance(n, Call) and n.kind in RULES]
    read = {n.variable for call in custom for n in nodes(call.block) if isinstance(n, Read)}
    return any(repr(program.variables[index].name) in text for index in read)


def _captures_converted_argument(program):
    """Whether a nested function captures what each replica has made of the step's argument."""
    functions = [n for n in nodes(program.body) if isinstance(n, Call) and n.kind == "function"]
    return program.argument != "array" and any(
        isinstance(n, Arg) for call in functions for n in nodes(call.block)
    )


def _captures_own_values(node):
    """Whether a nested function, called by eager replicas, captures what only a replica has."""
    for call in nodes(node):
        if not isinstance(call, Call) or call.kind != "function" or call.is_hoisted:
            continue
        inside = list(nodes(call.block))
        known = {name for n in inside for name in getattr(n, "params", ())}
        known |= {n.name for n in inside if hasattr(n, "name") and not isinstance(n, Local)}
        known |= {name for n in inside for name in getattr(n, "gradients", ())}
        if any(isinstance(n, BatchSum | Batch) for n in inside):
            return True
        if any(isinstance(n, AllGather) and n.is_batch for n in inside):
            return True
        if any(isinstance(n, Local) and n.name not in known for n in inside):
            return True
    return False
