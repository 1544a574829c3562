"""Notices plain arrays that look like a batch and go to every replica as a whole.

A step then does the work of all replicas on each of them, without an error. Called when a program
is compiled, and for eager runs.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax.core import nest, notices
from replicax.values.distributed import PerReplica


def notice_whole_batches(args: Any, kwargs: Any, num_replicas: int) -> None:
    """Says once that ``run`` gives plain arrays to every replica, where these look like a batch.

    They do if they are host arrays with as many rows as a distributed value in the same call, or
    if nothing but arrays with one number of rows is passed.

    Args:
        args: The arguments of ``run``.
        kwargs: The same by keyword.
        num_replicas: How many replicas get them.
    """
    if num_replicas == 1:
        return
    leaves = nest.flatten((args, kwargs))[0]
    sizes = {
        sum(shape[0] for shape in leaf._shapes)
        for leaf in leaves
        if isinstance(leaf, PerReplica) and leaf._shapes and all(leaf._shapes)
    }
    if sizes:
        suspects = [x for x in leaves if isinstance(x, np.ndarray) and x.ndim and len(x) in sizes]
    else:
        suspects = [x for x in leaves if isinstance(x, (np.ndarray, jax.Array)) and x.ndim]
        rows = {array.shape[0] for array in suspects}
        if len(suspects) < len(leaves) or len(rows) > 1 or max(rows, default=0) < num_replicas:
            return
    if suspects:
        notices.notify_once(
            "whole batches",
            f"run gives each of the {num_replicas} replicas the whole array of shape "
            f"{suspects[0].shape}, and so {num_replicas} times the work if it is a batch. Divide "
            "batches with strategy.distribute_batch(batch), or a dataset with "
            "strategy.distribute_dataset.",
        )
