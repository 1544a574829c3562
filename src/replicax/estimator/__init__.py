"""The Estimator: a ``model_fn`` and an ``input_fn``, with the loops and checkpoints around them.

Written with the public names of Replicax only, which a test checks. ``tf.estimator`` has its own.
"""
