"""Names that the documents place under ``tf.errors``: the errors of Replicax."""

from replicax.core.errors import OutOfRangeError

__all__ = ["OutOfRangeError"]
