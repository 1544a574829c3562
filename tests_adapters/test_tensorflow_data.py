"""tf.data.Dataset: what it declares, what it attaches, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from replicax.core.enums import AutoShardPolicy
from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.adapters.table import source_of
from replicax.input.source import INFINITE, UNKNOWN

NUMBERS = tf.data.Dataset.range(10)


def with_policy(policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return NUMBERS.batch(4).with_options(options)


@pytest.mark.parametrize("name", ["OFF", "FILE", "DATA", "HINT"])
def test_the_policy_of_its_options_is_handed_on(name):
    dataset = with_policy(tf.data.experimental.AutoShardPolicy[name])
    assert source_of(dataset).auto_shard_policy is AutoShardPolicy[name]


def test_without_a_policy_of_its_own_it_has_none():
    assert source_of(NUMBERS.batch(4)).auto_shard_policy is None
    dataset = with_policy(tf.data.experimental.AutoShardPolicy.AUTO)
    assert source_of(dataset).auto_shard_policy is None


@pytest.mark.parametrize(
    ("dataset", "cardinality", "batch_size"),
    [
        (NUMBERS.batch(4), 3, 4),
        (NUMBERS.batch(4).repeat(), INFINITE, 4),
        (NUMBERS.filter(lambda x: x > 2).batch(4), UNKNOWN, 4),
        (NUMBERS.batch(4).prefetch(2), 3, 4),
        (tf.data.Dataset.from_tensors([1, 2]), 1, 2),
        (NUMBERS.batch(4).map(lambda x: x * 2), 3, None),
    ],
)
def test_what_is_known_of_it(dataset, cardinality, batch_size):
    source = source_of(dataset)
    assert (source.cardinality, source.batch_size) == (cardinality, batch_size)


def test_its_spec_is_declared_with_what_is_known():
    dataset = NUMBERS.map(lambda x: {"n": x, "s": tf.strings.as_string(x)})
    spec = source_of(dataset.batch(4, drop_remainder=True)).element_spec
    assert spec == {"n": TensorSpec((4,), "int64"), "s": TensorSpec((4,), object)}


def test_strings_stay_on_the_host():
    dataset = NUMBERS.map(tf.strings.as_string).batch(3)
    batch = next(source_of(dataset).open(epoch=0, start=0))
    assert batch.tolist() == [b"0", b"1", b"2"]


def test_bfloat16_stays_bfloat16():
    dataset = NUMBERS.map(lambda x: tf.cast(x, tf.bfloat16)).batch(3)
    source = source_of(dataset)
    assert next(source.open(epoch=0, start=0)).dtype == source.element_spec.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            tf.data.Dataset.from_tensors({"r": tf.ragged.constant([[1], [1, 2]])}),
            r"leaf \['r'\] .* is ragged.*padded_batch",
        ),
        (
            tf.data.Dataset.from_tensors({"s": tf.sparse.eye(3)}),
            r"leaf \['s'\] .* is sparse.*to_dense",
        ),
        (NUMBERS.window(3), r"is a DatasetSpec; expected dense tensors"),
    ],
)
def test_what_is_no_dense_batch_is_refused_before_reading(dataset, message):
    with pytest.raises(BatchError, match=message):
        source_of(dataset)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (NUMBERS, r"the element of a tf\.data\.Dataset is a scalar.*dataset\.batch"),
        (NUMBERS.map(lambda x: {"a": [x], "b": x}), r"leaf \['b'\] .* is a scalar"),
    ],
)
def test_scalars_are_refused_where_batches_are_needed(dataset, message):
    source = source_of(dataset)
    with pytest.raises(BatchError, match=message):
        source.open(epoch=0, start=0)
    assert len(list(source.open_elements(epoch=0, start=4))) == 6


def test_tensors_in_a_list_of_batches_become_arrays():
    batch = next(source_of([{"x": tf.range(3)}]).open(epoch=0, start=0))
    assert isinstance(batch["x"], np.ndarray)
    with pytest.raises(BatchError, match=r"leaf \['r'\] of a list of batches is ragged"):
        ragged = tf.ragged.constant([[1], [1, 2]])
        next(source_of([{"r": ragged}]).open(epoch=0, start=0))
