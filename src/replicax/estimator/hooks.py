"""What a program may do between the steps of an Estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


class SessionRunContext:
    """What a hook may ask for.

    Attributes:
        stop_requested: Whether a hook wants the loop to end.

    Example:
        >>> context = SessionRunContext()
        >>> context.request_stop()
        >>> context.stop_requested
        True
    """

    def __init__(self) -> None:
        """Nothing was asked for yet."""
        self.stop_requested = False

    def request_stop(self) -> None:
        """Ends the loop after this step."""
        self.stop_requested = True


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRunValues:
    """What a hook gets of a step.

    Attributes:
        results: The loss of a step of training, as an array that may not have been computed yet;
            the predictions of a step of prediction; None in evaluation.

    Example:
        >>> SessionRunValues(0.5).results
        0.5
    """

    results: Any


class SessionRunHook:
    """Base of hooks; every method does nothing. There are no sessions: the name is TensorFlow's.

    Example:
        >>> class StopAtNan(SessionRunHook):
        ...     def after_run(self, run_context, run_values):
        ...         if run_values.results != run_values.results:
        ...             run_context.request_stop()
        >>> context = SessionRunContext()
        >>> StopAtNan().after_run(context, SessionRunValues(float("nan")))
        >>> context.stop_requested
        True
    """

    def begin(self) -> None:
        """Called once, before the first step."""

    def before_run(self, run_context: SessionRunContext) -> None:
        """Called before each step.

        Args:
            run_context: To ask for the end of the loop.
        """

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each step.

        Args:
            run_context: To ask for the end of the loop.
            run_values: What the step gave.
        """

    def end(self, session: Any = None) -> None:
        """Called once, after the last step.

        Args:
            session: Always None.
        """


class Hooks:
    """All hooks of one loop; a context manager around it.

    Args:
        hooks: The hooks, or None.

    Raises:
        TypeError: If one is no `SessionRunHook`.

    Example:
        >>> with Hooks([SessionRunHook()]) as hooks:
        ...     hooks.before_step()
        ...     hooks.after_step(0.5)
        >>> hooks.stop_requested
        False
    """

    def __init__(self, hooks: Sequence[SessionRunHook] | None) -> None:
        """The loop has not begun."""
        self._hooks = list(hooks or ())
        self._context = SessionRunContext()
        for hook in self._hooks:
            if not isinstance(hook, SessionRunHook):
                raise TypeError(f"hooks has {hook!r}; expected a SessionRunHook.")

    @property
    def stop_requested(self) -> bool:
        """Whether a hook wants the loop to end."""
        return self._context.stop_requested

    def __enter__(self) -> Hooks:
        for hook in self._hooks:
            hook.begin()
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is None:
            for hook in self._hooks:
                hook.end(None)

    def before_step(self) -> None:
        """Tells all hooks."""
        for hook in self._hooks:
            hook.before_run(self._context)

    def after_step(self, results: Any) -> None:
        """Tells all hooks.

        Args:
            results: What the step gave.
        """
        for hook in self._hooks:
            hook.after_run(self._context, SessionRunValues(results))
