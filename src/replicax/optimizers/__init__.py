"""Optimizers: Optax transformations whose state is variables of a strategy."""
