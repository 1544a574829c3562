"""Our optimizers, by the documented names."""

from replicax.optimizers.named import SGD, Adam, AdamW
from replicax.optimizers.optimizer import Optimizer

__all__ = ["Adam", "AdamW", "Optimizer", "SGD"]
