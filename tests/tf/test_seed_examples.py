"""The documents' examples run through ``replicax.tf`` with 1, 2, 4 and 8 devices.

Here with named CPU devices; in a fresh process as written, ``MirroredStrategy()``
on a machine that has that many virtual GPUs, and with ``["GPU:0", "GPU:1"]``.
"""

import dataclasses

import numpy as np
import pytest

import replicax.tf as tf
from tests.backend.fresh_process import run_fresh
from tests.tf import (
    dataset_examples,
    distributed_values_examples,
    extended_examples,
    strategy_examples,
)

MODULES = (strategy_examples, distributed_values_examples, extended_examples, dataset_examples)
EXAMPLES = {
    f"{module.__name__.rpartition('.')[2]}.{example.__name__}": example
    for module in MODULES
    for example in module.EXAMPLES
}
NUM_DEVICES = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Misprint:
    """A place where an example cannot be run as printed, and what is run instead."""

    example: str
    printed: str
    corrected: str
    reason: str


MISPRINTS = (
    Misprint(
        "strategy_examples.values_of_an_array_by_replica_id",
        "np.array([3., 2., 1.]) for any number of replicas",
        "as many values as there are replicas",
        "three values serve at most three replicas; beyond that the IndexError arrives unchanged",
    ),
    Misprint(
        "strategy_examples.values_placed_on_devices",
        "strategy.<line break>experimental_distribute_values_from_function(value_fn)",
        "one line",
        "a line cannot end in a dot outside brackets",
    ),
    Misprint(
        "strategy_examples.values_placed_on_devices",
        "tf.distribute.TPUStrategy()",
        "tf.distribute.MirroredStrategy()",
        "TPUStrategy takes no list of devices; tests/strategies/test_logical_devices.py has it so",
    ),
    Misprint(
        "extended_examples.variables_created_in_scope_are_owned",
        "strategy = tf.distribute.StrategyExtended(); strategy.variable_created_in_scope(v)",
        "a MirroredStrategy and its .extended",
        "StrategyExtended has no scope() and needs a strategy: it stands for a real one's extended",
    ),
    Misprint(
        "extended_examples.merge_call_adds_over_the_replicas",
        "distribution is undefined, part of its scope is '...'",
        "a MirroredStrategy; nothing is needed in place of the dots",
        "undefined names are supplied, elided parts filled in",
    ),
    Misprint(
        "distributed_values_examples.inspect_per_replica_values",
        "distributed_values is undefined in example 5",
        "the next element, as in examples 1, 3 and 4",
        "undefined names are supplied",
    ),
    Misprint(
        "extended_examples.update_runs_once_per_copy",
        "for device, v in var: ... return merged(results)",
        "strategy.extended.update(var, fn, ...)",
        "the listing is the meaning of update in pseudocode; merged does not exist",
    ),
    Misprint(
        "extended_examples.value_container_of_local_results",
        "value in experimental_local_results(value_container(value))",
        "value is one of them",
        "arrays compare element by element, so that membership can only go by identity",
    ),
    Misprint(
        "dataset_examples.distribute_a_dataset_of_files",
        "dataset_ops.Dataset.TFRecordDataset(files)",
        "tf.data.TFRecordDataset(files).map(parse).batch(GLOBAL_BATCH_SIZE)",
        "there is no such attribute; records are bytes, and the text says that it is batched",
    ),
    Misprint(
        "dataset_examples.element_spec_as_an_input_signature",
        "dataset_ops.Dataset.TFRecordDataset(files)",
        "tf.data.TFRecordDataset(files).map(parse).batch(GLOBAL_BATCH_SIZE)",
        "the same listing again",
    ),
    Misprint(
        "dataset_examples.datasets_from_a_function",
        "the loop stands outside the prompt and runs replica_fn, which is undefined",
        "the loop is the end of train, and runs step_fn",
        "step_fn would be unused otherwise",
    ),
    Misprint(
        "dataset_examples.datasets_from_a_function",
        "for batch in ds: over a dataset that repeats for ever",
        "the loop returns after 3 steps",
        "train(ds) would never come back",
    ),
    Misprint(
        "dataset_examples.a_simple_custom_training_loop",
        "my_strategy, dataset, EPOCHS and result are undefined",
        "a MirroredStrategy, batched rows, 2, and the sum of the input",
        "undefined names are supplied, elided parts filled in",
    ),
)


@pytest.mark.parametrize("num_devices", NUM_DEVICES)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_runs(example, num_devices):
    example([f"CPU:{i}" for i in range(num_devices)])


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", NUM_DEVICES)
def test_every_example_runs_on_all_devices_of_a_machine_with_gpus(num_devices):
    printed = run_fresh(
        f"""
        import replicax
        replicax.set_virtual_devices({num_devices}, kind="GPU")
        import replicax.tf as tf
        from tests.tf.test_seed_examples import MODULES

        names = tuple(f"GPU:{{i}}" for i in range({num_devices}))
        assert tf.distribute.MirroredStrategy().extended.worker_devices == names
        for module in MODULES:
            for example in module.EXAMPLES:
                example()
                print(example.__name__)
        """,
        timeout=300.0,
    )
    assert len(printed.splitlines()) == len(EXAMPLES)


@pytest.mark.slow
def test_every_example_runs_with_the_two_gpus_that_the_documents_name():
    printed = run_fresh(
        """
        import replicax
        replicax.set_virtual_devices(2, kind="GPU")
        from tests.tf.test_seed_examples import MODULES

        for module in MODULES:
            for example in module.EXAMPLES:
                example(["GPU:0", "GPU:1"])
                print(example.__name__)
        """,
        timeout=300.0,
    )
    assert len(printed.splitlines()) == len(EXAMPLES)


@pytest.mark.parametrize("num_devices", [4, 8])
def test_three_array_values_serve_at_most_three_replicas(num_devices):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    array_value = np.array([3.0, 2.0, 1.0])
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
        strategy.experimental_distribute_values_from_function(
            lambda ctx: array_value[ctx.replica_id_in_sync_group]
        )


@pytest.mark.parametrize("num_devices", [1, 2])
def test_three_array_values_serve_few_replicas_as_printed(num_devices):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    array_value = np.array([3.0, 2.0, 1.0])
    values = strategy.experimental_distribute_values_from_function(
        lambda ctx: array_value[ctx.replica_id_in_sync_group]
    )
    assert strategy.experimental_local_results(values) == (3.0, 2.0)[:num_devices]


@pytest.mark.parametrize("misprint", MISPRINTS, ids=lambda row: row.example)
def test_a_misprint_belongs_to_an_example(misprint):
    assert misprint.example in EXAMPLES
    assert misprint.printed != misprint.corrected


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_no_example_is_left_out_of_the_table(module):
    written = {
        value
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and value.__module__ == module.__name__
    }
    assert written == set(module.EXAMPLES)
