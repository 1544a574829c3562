"""Names that the documents place under ``tf.estimator``; see ``docs/estimator.md``."""

import typing

from replicax.estimator.estimator import Estimator
from replicax.estimator.hooks import SessionRunContext, SessionRunHook, SessionRunValues
from replicax.estimator.run_config import RunConfig
from replicax.estimator.spec import EstimatorSpec, ModeKeys
from replicax.estimator.training import EvalSpec, TrainSpec, train_and_evaluate
from replicax.tf.equivalents import missing as _missing

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "RunConfig",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "TrainSpec",
    "train_and_evaluate",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.estimator", name)
