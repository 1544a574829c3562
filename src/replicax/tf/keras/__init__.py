"""Names that the documents place under ``tf.keras``: metrics and optimizers."""

from replicax.tf.keras import metrics, optimizers

__all__ = ["metrics", "optimizers"]
