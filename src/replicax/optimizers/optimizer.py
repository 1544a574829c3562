"""`Optimizer`: an Optax transformation that trains the variables of a strategy.

Written with the public methods of ``Strategy.extended`` only. The gradients of all
replicas are reduced in one batch, the transformation sees the whole reduced tree
once, and every variable is then assigned with its slots. It knows a strategy only
through the context.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.core.errors import ContextError, VariableError
from replicax.engine.contexts import stack
from replicax.engine.storage import exclusively
from replicax.optimizers.accumulation import Accumulation
from replicax.optimizers.gradients import checked_pairs, is_reduced, reduced, trained_part
from replicax.optimizers.sharded import update_on_parts, works_on_parts
from replicax.optimizers.state import OptimizerState
from replicax.strategies import current
from replicax.strategies.base import Strategy
from replicax.variables.creation import layout_like
from replicax.variables.gradients import value_and_grad
from replicax.variables.variable import Variable

if TYPE_CHECKING:
    import optax


def import_optax() -> Any:
    """Optax, imported when the first optimizer is made: a program without one starts sooner."""
    import optax

    return optax


class Optimizer:
    """Applies gradients to variables, by any Optax transformation.

    Create it in the strategy's scope. Its state is created with the first
    gradients, or by `build`: the slots of a variable (momentum and the like) on
    the devices of that variable, the rest on the devices for non-slot state.

    In a replica, gradients are added over all replicas. Scale the loss by the
    global batch size, as for one device, and the sum is the gradient of the whole
    batch.

    Args:
        transformation: Anything with the ``init`` and ``update`` of an
            ``optax.GradientTransformation``.
        aggregation: How gradients of different replicas are combined: "SUM", or
            "MEAN" for a loss that is the mean of each replica's own batch.
        clip_global_norm: The largest global norm of the reduced gradients; larger
            ones are scaled down to it.
        accumulate_steps: Update once in so many calls, with the mean of their
            gradients; in a replica, replicas communicate only then.
        name: In front of the names of the state.

    Example:
        >>> import optax
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(3.0, name="w")
        ...     optimizer = rx.Optimizer(optax.sgd(0.25, momentum=0.9))
        >>> @rx.function
        ... def step():
        ...     gradient = rx.grad(lambda: w * w / 2, w)
        ...     optimizer.apply_gradients([(gradient, w)])
        >>> strategy.run(step)
        >>> w.numpy(), int(optimizer.iterations)
        (array(1.5, dtype=float32), 1)
        >>> optimizer.slots_of(w)["0/trace"].name
        'Optimizer/0/trace/w'
    """

    def __init__(
        self,
        transformation: optax.GradientTransformation | Any,
        *,
        aggregation: Any = "SUM",
        clip_global_norm: float | None = None,
        accumulate_steps: int = 1,
        name: str = "Optimizer",
    ) -> None:
        """An optimizer for variables of the strategy in whose scope it is created."""
        if not callable(getattr(transformation, "init", None)) or not callable(
            getattr(transformation, "update", None)
        ):
            raise TypeError(
                f"Optimizer needs an Optax transformation, with init and update; got "
                f"{transformation!r}. Call the factory: optax.adam(1e-3)."
            )
        if clip_global_norm is not None and not clip_global_norm > 0:
            raise ValueError(
                f"clip_global_norm is {clip_global_norm!r}; expected a positive number, or None."
            )
        if isinstance(accumulate_steps, bool) or not isinstance(accumulate_steps, int):
            raise TypeError(f"accumulate_steps is {accumulate_steps!r}; expected an int.")
        if accumulate_steps < 1:
            raise ValueError(f"accumulate_steps is {accumulate_steps}; expected 1 or more.")
        self._strategy = current.get_strategy()
        if stack.has_strategy() and not stack.in_cross_replica_context():
            raise ContextError(
                f"optimizer {name!r} was created inside {stack.describe()}, which would make one "
                "for each replica and call. Create it in `with strategy.scope():`."
            )
        self._transformation = transformation
        self._op = ReduceOp.parse(aggregation)
        self._clip_global_norm = clip_global_norm
        self._name = name
        self._state: OptimizerState | None = None
        self._accumulation: Accumulation | None = None
        if accumulate_steps > 1:
            self._accumulation = Accumulation(name, accumulate_steps, self._op)
        extended = self._strategy.extended
        with extended.colocate_vars_with(extended.non_slot_devices([])):
            self._iterations = Variable(
                np.int32(0),
                False,
                name=f"{name}/iterations",
                **layout_like(None, (), self._strategy),
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} of {self._strategy!r}>"

    @property
    def name(self) -> str:
        """The name in front of the names of the state."""
        return self._name

    @property
    def iterations(self) -> Variable:
        """How many updates there were, as an int32 variable."""
        return self._iterations

    @property
    def state(self) -> Any:
        """The state of the transformation, with a variable for each array; None before `build`."""
        return None if self._state is None else self._state.tree

    @property
    def learning_rate(self) -> Any:
        """The variable that holds the learning rate; assign a number to change it.

        The transformation must keep it in its state, as
        ``optax.inject_hyperparams(optax.adam)(learning_rate=0.1)`` does.

        Raises:
            AttributeError: If it does not, or the state is not built yet.
        """
        if self._state is None:
            raise AttributeError(
                f"optimizer {self._name!r} has no state yet, so no learning rate in it. Call "
                "build(variables) first."
            )
        found = self._state.hyperparameters("learning_rate")
        if len(found) != 1:
            raise AttributeError(
                f"optimizer {self._name!r} has {len(found)} learning rates that can be changed: "
                f"{[variable.name for variable in found]}. Make the transformation as "
                "optax.inject_hyperparams(optax.adam)(learning_rate=0.1), with a number and not a "
                "schedule, or use replicax.optimizers."
            )
        return found[0]

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.learning_rate.assign(value)

    @property
    def variables(self) -> list[Variable]:
        """Every variable of the optimizer's own, for a checkpoint."""
        found = [self._iterations]
        if self._state is not None:
            found += self._state.variables
        if self._accumulation is not None:
            found += self._accumulation.variables
        return found

    def slots_of(self, variable: Variable) -> dict[str, Variable]:
        """The slots of one variable by their place in the Optax state, such as ``0/mu``.

        Args:
            variable: A variable that the optimizer updates.

        Returns:
            The slots; empty before `build`.
        """
        return {} if self._state is None else self._state.slots_of(variable)

    # -- creating the state ------------------------------------------------------------------

    def build(self, variables: Any) -> None:
        """Creates the state for `variables`; `apply_gradients` otherwise does it.

        Args:
            variables: Any tree of variables, which is the tree that the
                transformation sees (for masks and labels), with None for anything
                else in it. For
                ``optax.lookahead`` an ``optax.LookaheadParams`` of two such trees:
                gradients are then for the fast one.

        Raises:
            VariableError: If it was built for other variables, or one belongs elsewhere.
        """
        given = nest.leaves_with_path(variables)
        variables = trained_part(variables)
        if given and not nest.flatten(variables)[0]:
            path, leaf = given[0]
            raise VariableError(
                f"build of optimizer {self._name!r} got {leaf!r} at {path!r}; expected "
                "variables of floats. Make them with variables_from."
            )
        flat = nest.flatten(variables)[0]
        if self._state is not None:
            self._require_same(flat, [id(v) for v in self._state.parameters], "build")
            return
        self._check_variables(flat)
        context = self._replica_context("build")
        if context is None:
            with self._in_force():
                self._create_state(variables)
        else:
            context._together("Optimizer.build", lambda: self._create_state(variables), ())

    def _create_state(self, tree: Any) -> None:
        trained = tree
        if isinstance(tree, import_optax().LookaheadParams):
            trained = tree.fast
        self._state = OptimizerState(
            self._strategy, self._name, self._transformation, tree, trained
        )

    def _check_variables(self, variables: list[Variable]) -> None:
        own = None if self._strategy is current.DEFAULT else self._strategy
        for variable in variables:
            if variable.strategy is not own:
                of = "outside every scope" if variable.strategy is None else "under another one"
                raise VariableError(
                    f"optimizer {self._name!r} of {self._strategy!r} got variable "
                    f"{variable.name!r}, which was created {of} ({variable.strategy!r}). Create "
                    "both inside the same `with strategy.scope():`."
                )
        names = [variable.name for variable in variables]
        if len({id(variable) for variable in variables}) != len(variables):
            raise VariableError(f"optimizer {self._name!r} got a variable twice: {names}.")

    def _require_same(self, variables: list[Variable], known: list[int], call: str) -> None:
        assert self._state is not None
        unknown = [v.name for v in variables if id(v) not in known]
        if unknown:
            built_for = [v.name for v in self._state.parameters]
            raise VariableError(
                f"{call} of optimizer {self._name!r} got variables {unknown}, which its state was "
                f"not built for: that is {built_for}. Pass the same variables each time, or "
                "create another optimizer for them."
            )
        if len(variables) != len(known):
            given = {id(v) for v in variables}
            both = [*self._state.parameters, *self._state.trained]
            missing = sorted({v.name for v in both if id(v) in known and id(v) not in given})
            raise VariableError(
                f"{call} of optimizer {self._name!r} got no gradient of variables {missing} (or "
                f"one twice): {[v.name for v in variables]}. Pass every variable each time; to "
                "leave some unchanged use optax.masked or optax.set_to_zero."
            )

    # -- applying gradients ------------------------------------------------------------------

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        aggregate: bool = True,
        experimental_aggregate_gradients: bool | None = None,
    ) -> None:
        """Updates variables by their gradients.

        In a replica, all replicas meet: gradients are combined, and one update
        reaches every copy. A gradient that is reduced already (what ``all_reduce``
        returned) is recognised and not combined again; what was computed from such
        ones needs ``aggregate=False``. In cross-replica context a per-replica
        gradient is combined, and a plain one is taken as it is.

        Args:
            grads_and_vars: Pairs of a gradient and its variable, or of trees of
                them; ``zip(gradients, variables)``, or ``[(gradients, params)]``.
            aggregate: False if all gradients are combined already.
            experimental_aggregate_gradients: The same, by its documented name.

        Raises:
            VariableError: If a gradient is None or has another shape, or a variable
                is not one that the optimizer was built for.
            DistributedValueError: If ``aggregate=False`` and replicas differ; in a
                compiled step a TraceError.
        """
        if experimental_aggregate_gradients is not None:
            aggregate = experimental_aggregate_gradients
        if self._strategy.extended.apply_gradients(self, grads_and_vars):
            return
        gradients, tree = checked_pairs(grads_and_vars)
        variables = nest.flatten(tree)[0]
        self._check_variables(variables)
        context = self._replica_context("apply_gradients")
        if self._state is None:
            self.build(tree)
        assert self._state is not None
        self._require_same(variables, [id(v) for v in self._state.trained], "apply_gradients")
        by_variable = {id(v): g for v, g in zip(variables, gradients, strict=True)}
        gradients = [by_variable[id(v)] for v in self._state.trained]
        if context is None:
            with self._in_force():
                self._merge(self._strategy, gradients, aggregate, of_replicas=False)
        elif self._accumulation is not None and aggregate:
            self._accumulate(context, self._accumulation, gradients)
        else:
            context.merge_call(self._merge, args=(gradients, aggregate))

    def minimize(self, loss: Callable[[], Any], var_list: Any, tape: None = None) -> None:
        """Takes the gradients of `loss` and applies them.

        Args:
            loss: A function without arguments that returns a scalar.
            var_list: The variables, in any nest.
            tape: None: there is no gradient tape.

        Raises:
            TypeError: If `loss` is a value, or there is a tape.
        """
        if not callable(loss) or tape is not None:
            raise TypeError(
                f"minimize of optimizer {self._name!r} got loss={loss!r}, tape={tape!r}. JAX "
                "differentiates functions: pass one without arguments that returns the loss, and "
                "no tape."
            )
        _, gradients = value_and_grad(loss, var_list)
        self.apply_gradients([(gradients, var_list)])

    def _merge(
        self, strategy: Strategy, gradients: list[Any], aggregate: bool, of_replicas: bool = True
    ) -> None:
        """Reduces the gradients of all replicas and applies them, in cross-replica context."""
        assert self._state is not None
        variables = self._state.trained
        totals = reduced(
            strategy, self._op, gradients, variables, aggregate=aggregate, of_replicas=of_replicas
        )
        accumulation = self._accumulation
        with exclusively():
            if accumulation is None:
                self._update(strategy, totals)
                return
            accumulation.prepare(strategy, self._state.devices, totals, variables, local=False)
            accumulation.add_reduced(strategy, totals)
            accumulation.finish_step(strategy, lambda means: self._update(strategy, means))

    def _accumulate(self, context: Any, accumulation: Accumulation, gradients: list[Any]) -> None:
        """Adds the replica's own gradients to its own sums, in replica context."""
        assert self._state is not None
        state = self._state

        def prepare(strategy: Strategy, gradients: list[Any]) -> list[bool]:
            accumulation.prepare(strategy, state.devices, gradients, state.trained, local=True)
            return [is_reduced(gradient) for gradient in gradients]

        def finish(strategy: Strategy) -> None:
            with exclusively():
                accumulation.finish_step(strategy, lambda means: self._update(strategy, means))

        are_reduced = context.merge_call(prepare, args=(gradients,))
        accumulation.add_local(context, gradients, are_reduced)
        context.merge_call(finish)

    def _update(self, strategy: Strategy, gradients: list[Any]) -> None:
        """One step of the transformation over all reduced gradients at once."""
        assert self._state is not None
        state = self._state
        also = [(self._iterations, self._iterations.read_value() + np.int32(1))]
        if works_on_parts(state, gradients):
            update_on_parts(strategy, state, gradients, self._step, also)
            return
        new, new_state = self._step(gradients, state.read_parameters(), state.read())
        state.write(strategy, new, new_state, also)

    def _step(self, gradients: list[Any], values: list[Any], state: Any) -> tuple[Any, Any]:
        """The new parameters, in their tree, and the new state."""
        assert self._state is not None
        optax = import_optax()
        parameters = nest.unflatten(self._state.structure, values)
        tree = nest.unflatten(self._state.trained_structure, gradients)
        if self._clip_global_norm is not None:
            clip = optax.clip_by_global_norm(self._clip_global_norm)
            tree, _ = clip.update(tree, clip.init(tree))
        updates, new_state = self._transformation.update(tree, state, parameters)
        return optax.apply_updates(parameters, updates), new_state

    def _elsewhere(self) -> tuple[Callable[[Sequence[Any]], Any], list[Variable]]:
        """The transformation for where none of its variables are, such as a parameter server.

        Returns:
            A function that makes it of the values of some variables, and these variables.
        """
        return functools.partial(_as_given, self._transformation), []

    # -- contexts ----------------------------------------------------------------------------

    def _replica_context(self, call: str) -> Any:
        """The context of the replica that calls, or None in cross-replica context."""
        if current.get_strategy() is self._strategy:
            return current.get_replica_context()
        if stack.has_strategy():
            raise ContextError(
                f"{call} of optimizer {self._name!r}, which was created under "
                f"{self._strategy!r}, was called inside {stack.describe()}. Create the optimizer "
                "in that strategy's scope."
            )
        return None

    def _in_force(self) -> Any:
        """Makes the optimizer's strategy the current one, where none is."""
        if current.get_strategy() is self._strategy:
            return contextlib.nullcontext()
        return self._strategy.scope()


def _as_given(transformation: Any, values: Sequence[Any]) -> Any:
    del values
    return transformation
