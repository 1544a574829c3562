"""What profilers show: programs and collectives have the names of the code that asked for them."""

import re

import numpy as np
import optax
import pytest

import replicax as rx


def compiled(strategy, step, batch):
    return step.lower_run(strategy, batch).compile().as_text()


def names_of(text, operation):
    """The ``op_name`` of each such instruction of a compiled program."""
    return re.findall(rf" {operation}(?:-start)?\(.*op_name=\"([^\"]*)\"", text)


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def training(strategy, **options):
    """A step that sums a gradient, and gathers what replicas have."""
    with strategy.scope():
        w = rx.Variable(np.ones((8, 8), np.float32))
        optimizer = rx.Optimizer(optax.sgd(0.1), **options)

    @rx.function
    def train_step(x):
        loss, gradient = rx.value_and_grad(lambda: rx.compute_average_loss((x @ w).sum(1) ** 2), w)
        optimizer.apply_gradients([(gradient, w)])
        return rx.get_replica_context().all_gather(loss[None], axis=0)

    return train_step


def test_a_program_is_named_after_its_function(strategy):
    batch = strategy.distribute_batch(np.ones((4, 8), np.float32))
    text = compiled(strategy, training(strategy), batch)
    assert text.startswith("HloModule jit_train_step,")


def test_the_run_of_a_cross_replica_function_has_the_name_of_the_replica_function(strategy):
    def replica_step(x):
        return rx.get_replica_context().all_reduce("MEAN", x.sum())

    @rx.function
    def whole_step(x):
        return strategy.run(replica_step, args=(x,))

    batch = strategy.distribute_batch(np.ones((4, 8), np.float32))
    text = whole_step.lower(batch).compile().as_text()
    assert text.startswith("HloModule jit_whole_step,")
    (name,) = names_of(text, "all-reduce")
    assert "replica_step/rx.all_reduce.MEAN/" in name


def test_collectives_say_which_of_ours_they_are(strategy):
    batch = strategy.distribute_batch(np.ones((4, 8), np.float32))
    text = compiled(strategy, training(strategy), batch)
    (reduced,), (gathered,) = names_of(text, "all-reduce"), names_of(text, "all-gather")
    assert "train_step/rx.all_reduce.SUM/" in reduced
    assert "train_step/rx.all_gather/" in gathered


def test_uneven_batches_leave_the_names(strategy):
    batch = strategy.distribute_batch(np.ones((3, 8), np.float32))
    text = compiled(strategy, training(strategy), batch)
    assert any("rx.all_reduce.SUM/" in name for name in names_of(text, "all-reduce"))


def test_sharded_state_names_what_it_sends():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], sharding=rx.experimental.Sharding(stage=3))
    batch = strategy.distribute_batch(np.ones((4, 8), np.float32))
    text = compiled(strategy, training(strategy), batch)
    assert "/rx.reduce_scatter.SUM/" in text
    assert "/rx.all_gather/" in text


def test_a_value_reduced_outside_of_run_is_named(strategy):
    @rx.function
    def total(x):
        return strategy.reduce("SUM", x, axis=0)

    batch = strategy.distribute_batch(np.ones((4, 8), np.float32))
    text = total.lower(batch).compile().as_text()
    (name,) = names_of(text, "all-reduce")
    assert "jit(total)/" in name
    assert "rx.all_reduce.SUM/" in name
