"""``tf.compat.v1.distribute.get_loss_reduction``."""

from replicax.core import enums

__all__ = ["get_loss_reduction"]


def get_loss_reduction() -> enums.ReduceOp:
    """How optimizers combine the losses of the replicas: always by SUM.

    Only an Estimator could make it MEAN; without one the loss itself must be
    divided by the global batch size.

    Returns:
        ``ReduceOp.SUM``.

    Example:
        >>> get_loss_reduction()
        <ReduceOp.SUM: 'SUM'>
    """
    return enums.ReduceOp.SUM
