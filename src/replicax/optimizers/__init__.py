"""Optimizers: Optax transformations whose state is variables of a strategy.

Its own facade: ``rx.optimizers.Adam(1e-3)``. The package itself imports the modules.
"""

from replicax.optimizers.named import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    Nadam,
    RMSprop,
)
from replicax.optimizers.optimizer import Optimizer

__all__ = ["Adafactor", "Adagrad", "Adam", "AdamW", "Lion", "Nadam", "Optimizer", "RMSprop", "SGD"]
