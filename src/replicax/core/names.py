"""Names shared by every layer."""

from typing import Final

REPLICA_AXIS: Final = "replica"
"""The mesh axis of the replicas: ``jax.lax.psum(x, REPLICA_AXIS)`` works in a compiled run."""
