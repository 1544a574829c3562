"""Names that the documents place under ``tf.compat``."""

from replicax.tf.compat import v1

__all__ = ["v1"]
