"""Runs a random program with Replicax and compares it with the reference, step by step."""

from __future__ import annotations

import functools
import linecache
import warnings

import jax.numpy as jnp
import numpy as np

import replicax as rx
from tests.random_programs import rules
from tests.random_programs.bounded import DTYPES, epsilon
from tests.random_programs.reference import Machine
from tests.random_programs.source import Source
from tests.random_programs.syntax import AllReduce, Batch, Binary


class Difference(AssertionError):
    """The library and the reference disagree."""


@functools.cache
def strategy_of(num_replicas):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


def check(program):
    """Runs the program by all of its executors.

    Raises:
        Rejected: If the reference cannot say what it must give.
        Difference: If an executor gives something else.
    """
    machine = Machine(program)
    expected = [machine.run(step) for step in program.steps]
    text = Source(program).text()
    kinds = {}
    for name in program.executors:
        refusals = rules.refusals(program, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rx.ReplicaxWarning)
            try:
                execution = Execution(program, text, name)
                if refusals:
                    execution.check_refusal(refusals)
                    continue
                for number, step in enumerate(program.steps):
                    execution.check_step(number, step, expected[number])
            except Difference:
                raise
            except rx.ReplicaxError as error:
                if not rules.may_refuse(program, name, error):
                    raise Difference(f"{name}: {type(error).__name__}: {error}") from error
                continue
            except Exception as error:
                raise Difference(f"{name}: {type(error).__name__}: {error}") from error
        kinds[name] = execution.kinds
    if len(set(kinds.values())) > 1:
        raise Difference(f"the executors give results of different kinds: {kinds}")


class Execution:
    """One program, made anew for one executor."""

    def __init__(self, program, text, executor):
        self.program = program
        self.executor = executor
        self.strategy = strategy_of(program.num_replicas)
        filename = f"<random program {id(self):x}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        namespace = {"__name__": "random_program"}
        exec(compile(text, filename, "exec"), namespace)
        del linecache.cache[filename]
        parts = namespace["program"](self.strategy)
        self.variables, fn, around, self.set_knobs = parts
        self.function = None
        if executor == "eager":
            self.call = functools.partial(around, fn)
        elif executor == "compiled":
            self.function = rx.function(fn)
            self.call = functools.partial(around, self.function)
        else:
            self.function = rx.function(lambda x, a: around(fn, x, a))
            self.call = self.function
        self.knobs, self.knobs_set = program.steps[0].knobs, 0
        self.traces = {}
        self.kinds = ()

    def arguments(self, step):
        """The batch and the number, as the program wants them."""
        dtype = DTYPES[self.program.dtype]
        examples = [np.asarray(values, dtype) for values in step.examples()]
        whole = np.concatenate(examples)
        chunk = -(-len(whole) // self.program.num_replicas)
        if len(whole) and [len(e) for e in examples] == [
            max(0, min(chunk, len(whole) - i * chunk)) for i in range(len(examples))
        ]:
            batch = self.strategy.distribute_batch(whole)
        else:
            batch = self.strategy.experimental_distribute_values_from_function(
                lambda context: jnp.asarray(examples[context.replica_id_in_sync_group])
            )
        number = self._number(step.argument)
        wrap = {"float": lambda n: n, "array": lambda n: jnp.asarray(n, dtype), "numpy": dtype.type}
        return batch, wrap[self.program.argument](number)

    def _number(self, value):
        return value if self.program.dtype == "int32" else float(value)

    def check_refusal(self, texts):
        """What cannot be done must be refused, with one of these texts."""
        step = self.program.steps[0]
        try:
            self.call(*self.arguments(step))
        except rx.ReplicaxError as error:
            teaches = any(text in str(error) for text in texts)
            if not teaches and not rules.may_refuse(self.program, self.executor, error):
                raise Difference(f"an error that does not help: {error!r}") from error
        else:
            raise Difference(f"{self.executor}: this was not refused: {sorted(texts)}")

    def check_step(self, number, step, expected):
        """Does one step and compares everything that it leaves behind."""
        place = f"{self.executor}, step {number}"
        if step.knobs != self.knobs:
            self.set_knobs(*map(self._number, step.knobs))
            self.knobs, self.knobs_set = step.knobs, number
        arguments = self.arguments(step)
        outputs, around = self.call(*arguments)
        self.kinds = tuple(
            type(output).__name__
            for output, written in zip(outputs, self.program.outputs, strict=True)
            if isinstance(written, Binary | Batch | AllReduce)  # surely computed in the run
        )
        for index, (got, wanted) in enumerate(zip(outputs, expected.outputs, strict=True)):
            parts = self.strategy.experimental_local_results(got)
            if len(parts) == 1:
                parts *= self.program.num_replicas
            for replica, (part, number_) in enumerate(zip(parts, wanted, strict=True)):
                _compare(f"{place}: output {index} of replica {replica}", part, number_)
        for index, (got, wanted) in enumerate(zip(around, expected.around, strict=True)):
            _compare(f"{place}: result {index} after the run", got, wanted)
        for index, variable in enumerate(self.variables):
            self._check_variable(place, index, variable, expected)
        self._check_traces(place, step)

    def _check_variable(self, place, index, variable, expected):
        declared = self.program.variables[index]
        views = self.strategy.experimental_local_results(variable)
        copies = [np.asarray(view.read_value()) for view in views]
        if not declared.on_read and any(c.tobytes() != copies[0].tobytes() for c in copies):
            raise Difference(f"{place}: the copies of {declared.name} differ: {copies}")
        for replica, (copy, wanted) in enumerate(zip(copies, expected.copies[index], strict=True)):
            _compare(f"{place}: copy {replica} of {declared.name}", copy, wanted)
        if expected.values[index] is not None:
            value = variable.read_value()
            _compare(f"{place}: {declared.name} across replicas", value, expected.values[index])

    def _check_traces(self, place, step):
        """A call like an earlier one must not trace again."""
        if self.function is None:
            return
        is_static = self.program.argument == "float" and self.program.dtype == "int32"
        key = step.sizes, self.knobs_set, step.argument if is_static else None
        if key in self.traces and self.function.trace_count != self.traces["last"]:
            before = self.traces["last"]
            raise Difference(
                f"{place}: a repeated call was traced: {before} -> {self.function.trace_count}"
            )
        self.traces[key] = self.traces["last"] = self.function.trace_count


def _compare(what, got, wanted):
    got = np.asarray(got)
    if got.dtype != DTYPES[wanted.dtype]:
        raise Difference(f"{what} is {got.dtype}, expected {wanted.dtype}")
    if got.shape != wanted.shape:
        raise Difference(f"{what} has shape {got.shape}, expected {wanted.shape}")
    values = got.astype(np.float64)
    slack = 2 * wanted.error + np.where(wanted.error > 0, epsilon(wanted.dtype), 0)
    if not np.all(np.abs(values - wanted.value) <= slack):
        raise Difference(f"{what} is {got}, expected {wanted.value} (within {slack})")
