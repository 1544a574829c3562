"""Batch norms of libraries whose models are trees of variables, in a replica without rows.

A replica whose share of a batch is empty has nothing to average over: the mean of no rows is NaN,
and so would be the statistics of the replica and the gradients of all. In such a replica these
layers use the statistics that they have and leave them alone, which gives every gradient its true
value, zero. That is what they do with `use_running_average`, `inference` or `is_training=False`.

Each module replaces one method of one library, for code inside ``Strategy.run`` only, and is
imported by `core.companions`. The batch norm of Flax NNX is in ``integrations.flax.hooks``, that of
Keras in ``integrations.keras``.
"""
