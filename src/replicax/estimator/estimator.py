"""`Estimator`: trains, evaluates and predicts with a ``model_fn``, and keeps its checkpoints."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import replicax as rx
from replicax.checkpoint.reader import load_checkpoint
from replicax.estimator.hooks import Hooks, SessionRunHook
from replicax.estimator.input import batches
from replicax.estimator.model import Model
from replicax.estimator.run_config import RunConfig
from replicax.estimator.spec import EstimatorSpec, ModeKeys

InputFn = Callable[..., Any]

DEFAULT_SECONDS = 600
DEFAULT_STEPS = 1000

_log = logging.getLogger("replicax.estimator")


class Estimator:
    """A model as a function, with the loops around it.

    ``model_fn(features, labels, mode, params)`` is called in replica context, while a step is
    compiled, under the strategy of its mode. It may leave out all but `features`, and take
    `config`. Variables that it creates are the same in each call.

    A run that was killed goes on at its last checkpoint, the place in the dataset included, with
    the bits of a run that was not.

    Args:
        model_fn: Returns an `EstimatorSpec`.
        model_dir: The folder of the checkpoints; that of `config` if None.
        config: How it runs.
        params: Anything, for `model_fn` and ``input_fn``.

    Raises:
        ValueError: If there is no folder, or there are two.
        TypeError: If `model_fn` is no function, or `config` no `RunConfig`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import replicax as rx
        >>> import replicax.tf as tf
        >>> def model_fn(features, labels, mode):
        ...     w = rx.Variable(0.0, name="w")
        ...     if mode == tf.estimator.ModeKeys.PREDICT:
        ...         return tf.estimator.EstimatorSpec(mode, predictions=w * features)
        ...     loss = ((w * features - labels) ** 2).mean()
        ...     return tf.estimator.EstimatorSpec(
        ...         mode, loss=loss, train_op=lambda: rx.optimizers.SGD(0.1))
        >>> x = np.array([1.0, 2.0], np.float32)
        >>> def input_fn():
        ...     return rx.data.Dataset.from_tensor_slices((x, 3 * x)).batch(2).repeat()
        >>> estimator = tf.estimator.Estimator(model_fn, tempfile.mkdtemp())
        >>> estimator.train(input_fn, steps=40).get_variable_value("w")
        array(3., dtype=float32)
        >>> round(estimator.evaluate(input_fn, steps=1)["loss"], 3)
        0.0
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
    ) -> None:
        """An estimator; nothing is created before the first batch."""
        if not callable(model_fn):
            raise TypeError(f"model_fn is {model_fn!r}; expected a function.")
        if config is not None and not isinstance(config, RunConfig):
            raise TypeError(f"config is {config!r}; expected a RunConfig.")
        config = config or RunConfig()
        folders = {
            os.path.abspath(folder)
            for folder in (model_dir, config.model_dir)
            if folder is not None
        }
        if len(folders) != 1:
            raise ValueError(
                f"an Estimator keeps its checkpoints in one folder; got {sorted(folders)}. Pass "
                "model_dir, or a RunConfig that has it."
            )
        self._model_dir = folders.pop()
        self._config = config.replace(model_dir=self._model_dir)
        self._params = params
        self._model_fn = model_fn
        self._models: dict[str, Model] = {}

    @property
    def model_dir(self) -> str:
        """The folder of the checkpoints."""
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        """How it runs."""
        return self._config

    @property
    def params(self) -> Any:
        """What was given for the ``model_fn``."""
        return self._params

    # -- training --------------------------------------------------------------------------------

    def train(
        self,
        input_fn: InputFn,
        hooks: Sequence[SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> Estimator:
        """Trains, beginning with the last checkpoint if there is one.

        Args:
            input_fn: Gives the dataset: pairs of features and labels.
            hooks: Called between the steps.
            steps: How many steps to take at most.
            max_steps: The total at which to stop, steps of earlier calls included.

        Returns:
            This estimator.

        Raises:
            ValueError: If both `steps` and `max_steps` are given, a number is not positive, or the
                dataset is empty.
        """
        if steps is not None and max_steps is not None:
            raise ValueError(
                f"train got steps={steps} and max_steps={max_steps}. Leave out one of the two."
            )
        _require_positive("steps", steps)
        last = max_steps if steps is None else self._latest_step() + steps
        self._train(input_fn, hooks, last, after_save=lambda: None)
        return self

    def _train(
        self,
        input_fn: InputFn,
        hooks: Sequence[SessionRunHook] | None,
        last: int | None,
        after_save: Callable[[], None],
    ) -> None:
        """Trains to the step `last`, and calls `after_save` after each checkpoint."""
        _require_positive("max_steps", last)
        if last is not None and self._latest_step() >= last:
            return
        config = self._config
        strategy = config.train_distribute or rx.get_strategy()
        is_due = self._when_to_save(strategy)
        place = _Reading(batches(input_fn, strategy, ModeKeys.TRAIN, config, self._params))
        batch = _first(place.iterator)
        model = self._model(ModeKeys.TRAIN, strategy, batch)
        checkpoint = rx.Checkpoint(place=place, **model.objects)
        manager = rx.CheckpointManager(checkpoint, self._model_dir, config.keep_checkpoint_max)
        manager.restore_or_initialize()
        if place.was_restored:
            batch = next(place.iterator, None)
        step = int(model.global_step.numpy())
        with Hooks(hooks) as told:
            while batch is not None and step != last and not told.stop_requested:
                told.before_step()
                losses = model.step(batch)
                loss = strategy.experimental_local_results(losses)[0]
                step += 1
                told.after_step(loss)
                if config.log_step_count_steps and step % config.log_step_count_steps == 0:
                    _log.info("loss = %g, step = %d", float(loss), step)
                if step != last:
                    if is_due(step):
                        manager.save(step)
                        after_save()
                    batch = next(place.iterator, None)
        place.is_over = True
        manager.save(step)
        after_save()

    def _when_to_save(self, strategy: rx.Strategy) -> Callable[[int], bool]:
        """Whether a checkpoint is due after a step."""
        seconds = self._config.save_checkpoints_secs
        every = self._config.save_checkpoints_steps
        if strategy.extended.experimental_between_graph and every is None:
            if seconds is not None:
                raise ValueError(
                    f"save_checkpoints_secs={seconds} with many workers, whose clocks differ, "
                    "while all of them save together. Use save_checkpoints_steps."
                )
            every = DEFAULT_STEPS
        if every is not None:
            return lambda step: step % every == 0
        return _Clock(seconds or DEFAULT_SECONDS).is_due

    # -- evaluation and prediction ---------------------------------------------------------------

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """The metrics over a dataset. Every example counts once, also in uneven batches.

        Args:
            input_fn: Gives the dataset: pairs of features and labels.
            steps: How many steps to take at most; to the end of the dataset if None.
            hooks: Called between the steps.
            checkpoint_path: The checkpoint; the latest if None.
            name: Accepted because it is documented; evaluations are not written to files.

        Returns:
            The metrics by name, with ``loss`` and ``global_step``.

        Raises:
            ValueError: If there is no checkpoint, or the dataset is empty.
        """
        del name
        _require_positive("steps", steps)
        model, all_batches = self._restored(ModeKeys.EVAL, input_fn, checkpoint_path)
        with model.strategy.scope():
            for metric in model.metrics.values():
                metric.reset_state()
        with Hooks(hooks) as told:
            for batch in itertools.islice(all_batches, steps):
                told.before_step()
                model.step(batch)
                told.after_step(None)
                if told.stop_requested:
                    break
        with model.strategy.scope():
            found = {name: np.asarray(m.result()).tolist() for name, m in model.metrics.items()}
        return {**found, "global_step": int(model.global_step.numpy())}

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """The predictions for a dataset, in its order; with many workers on all of them.

        Args:
            input_fn: Gives the dataset: features, or pairs of features and labels.
            predict_keys: Which of the predictions to give, if they are a dict; all if None.
            hooks: Called between the steps.
            checkpoint_path: The checkpoint; the latest if None.
            yield_single_examples: Whether each example comes by itself, or each batch.

        Returns:
            An iterator over nests of host arrays.

        Raises:
            ValueError: If there is no checkpoint, or the dataset is empty.
        """
        model, all_batches = self._restored(ModeKeys.PREDICT, input_fn, checkpoint_path)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        with Hooks(hooks) as told:
            for batch in all_batches:
                told.before_step()
                whole = model.strategy.gather(model.step(batch), axis=0)
                predictions = jax.tree.map(np.asarray, whole)
                told.after_step(predictions)
                if keys is not None:
                    predictions = {key: predictions[key] for key in keys}
                yield from _rows(predictions) if yield_single_examples else (predictions,)
                if told.stop_requested:
                    return

    def _restored(self, mode: str, input_fn: InputFn, path: Any) -> tuple[Model, Iterator[Any]]:
        """The model of a mode with the values of a checkpoint, and all batches."""
        path = self._latest_or_raise() if path is None else os.fspath(path)
        strategy = self._config.eval_distribute or rx.get_strategy()
        iterator = batches(input_fn, strategy, mode, self._config, self._params)
        first = _first(iterator)
        model = self._model(mode, strategy, first)
        rx.Checkpoint(**model.objects).restore(path).expect_partial()
        return model, itertools.chain([first], iterator)

    # -- checkpoints -----------------------------------------------------------------------------

    def latest_checkpoint(self) -> str | None:
        """The path of the latest checkpoint, or None."""
        return rx.latest_checkpoint(self._model_dir)

    def get_variable_names(self) -> list[str]:
        """The names of the variables in the latest checkpoint."""
        shapes = load_checkpoint(self._latest_or_raise()).get_variable_to_shape_map()
        return sorted(key.removeprefix("model/") for key in shapes if key != "save_counter")

    def get_variable_value(self, name: str) -> np.ndarray:
        """The value of a variable in the latest checkpoint.

        Args:
            name: Its name, as `get_variable_names` has it.

        Returns:
            A host array.

        Raises:
            ValueError: If there is no checkpoint.
            CheckpointNotFoundError: If there is no such variable.
        """
        reader = load_checkpoint(self._latest_or_raise())
        return reader.get_tensor(f"model/{name}" if reader.has_tensor(f"model/{name}") else name)

    def _latest_or_raise(self) -> str:
        path = self.latest_checkpoint()
        if path is None:
            raise ValueError(
                f"{self._model_dir} has no checkpoint. Call train first, or pass checkpoint_path."
            )
        return path

    def _latest_step(self) -> int:
        """The step of the latest checkpoint, or 0."""
        if self.latest_checkpoint() is None:
            return 0
        return int(self.get_variable_value("global_step"))

    def _model(self, mode: str, strategy: rx.Strategy, batch: Any) -> Model:
        """The model for a mode; made once, so that its steps are compiled once."""
        model = self._models.get(mode)
        if model is None or model.strategy is not strategy:
            optional = {"params": self._params, "config": self._config}
            model = self._models[mode] = Model(self._model_fn, mode, strategy, optional, batch)
        return model


class _Reading:
    """The place in a dataset, for a checkpoint.

    It counts only for a run that was interrupted: one that came to its end leaves none, and the
    next one begins with the first batch.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.is_over = False
        self.was_restored = False

    def get_state(self) -> dict[str, Any]:
        return {} if self.is_over else {"place": self.iterator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        if "place" in state:
            self.iterator.set_state(state["place"])
            self.was_restored = True


class _Clock:
    """Says when some seconds have passed since it said so before."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start = time.monotonic()

    def is_due(self, step: int) -> bool:
        del step
        if time.monotonic() - self._start < self._seconds:
            return False
        self._start = time.monotonic()
        return True


def _require_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name} is {value}; expected 1 or more.")


def _first(iterator: Iterator[Any]) -> Any:
    batch = next(iterator, None)
    if batch is None:
        raise ValueError("input_fn returned an empty dataset. Let it return one with a batch.")
    return batch


def _rows(predictions: Any) -> Iterator[Any]:
    """The predictions of each example by themselves."""
    for row in range(len(jax.tree.leaves(predictions)[0])):
        yield jax.tree.map(lambda leaf, row=row: leaf[row], predictions)
