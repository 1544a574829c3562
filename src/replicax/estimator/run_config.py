"""`RunConfig`: where an Estimator keeps its files, what it runs on, when it saves."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import replicax as rx


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How an Estimator runs.

    Attributes:
        model_dir: The folder of the checkpoints.
        tf_random_seed: A number for ``model_fn`` and ``input_fn``, which find it in their argument
            `config`. There is no global seed that it could set.
        save_checkpoints_steps: Steps from one checkpoint to the next.
        save_checkpoints_secs: Seconds from one checkpoint to the next; on one worker only. If
            neither is given: 600 seconds, or 1000 steps with many workers.
        keep_checkpoint_max: How many checkpoints are kept; None for all.
        log_step_count_steps: Steps from one line of the log to the next; None for no log.
        train_distribute: The strategy of training. If None, the one in whose scope ``train`` is
            called, or the default strategy.
        eval_distribute: The same for evaluation and prediction.

    Raises:
        ValueError: If both ways to save are given, or a number is not positive.
        TypeError: If a strategy is something else.

    Example:
        >>> RunConfig("/tmp/model", save_checkpoints_steps=100).replace(keep_checkpoint_max=2)
        RunConfig(model_dir='/tmp/model', ... keep_checkpoint_max=2, ...)
    """

    model_dir: str | os.PathLike[str] | None = None
    _: dataclasses.KW_ONLY
    tf_random_seed: int | None = None
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100
    train_distribute: rx.Strategy | None = None
    eval_distribute: rx.Strategy | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise ValueError(
                f"RunConfig got save_checkpoints_steps={self.save_checkpoints_steps} and "
                f"save_checkpoints_secs={self.save_checkpoints_secs}. Leave out one of the two."
            )
        for name in (
            *("save_checkpoints_steps", "save_checkpoints_secs", "keep_checkpoint_max"),
            "log_step_count_steps",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} of a RunConfig is {value!r}; expected more than 0.")
        for name in ("train_distribute", "eval_distribute"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, rx.Strategy):
                raise TypeError(f"{name} of a RunConfig is {value!r}; expected a Strategy.")

    def replace(self, **changes: Any) -> RunConfig:
        """The same with other fields.

        Args:
            **changes: The new values, by name.

        Returns:
            A new RunConfig.
        """
        return dataclasses.replace(self, **changes)
