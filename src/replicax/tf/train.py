"""Names that the documents place under ``tf.train``."""

from replicax.cluster.spec import ClusterSpec

__all__ = ["ClusterSpec"]
