"""The documented spelling, ``tf.data``, as the documents write it."""

import numpy as np

import replicax.data
import replicax.tf as tf


def test_the_names_are_those_of_data():
    assert tf.data.Dataset is replicax.data.Dataset
    assert tf.data.TFRecordDataset is replicax.data.TFRecordDataset
    assert tf.data.TextLineDataset is replicax.data.TextLineDataset
    assert tf.data.Options is replicax.data.Options
    assert tf.data.experimental.AutoShardPolicy is replicax.data.AutoShardPolicy
    assert tf.data.experimental.DistributeOptions is replicax.data.DistributeOptions
    assert (tf.data.AUTOTUNE, tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY) == (
        -1,
        -1,
        -2,
    )


def test_the_documented_batches():
    dataset = tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(2)
    assert [batch.tolist() for batch in dataset] == [[5.0, 6.0], [7.0, 8.0]]
    assert dataset.element_spec == tf.TensorSpec((None,), tf.float32)


def test_the_documented_endless_batches():
    dataset = tf.data.Dataset.from_tensors([[1.0]]).repeat().batch(3)
    assert next(iter(dataset)).shape == (3, 1, 1)
    assert next(iter(dataset)).dtype == tf.float32


def test_the_documented_options():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.range(3).with_options(options)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy is tf.data.experimental.AutoShardPolicy.OFF


def test_a_pipeline_as_it_is_usually_written():
    images = np.arange(40.0, dtype=np.float32).reshape(10, 4)
    labels = np.arange(10)
    dataset = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .map(lambda image, label: (tf.cast(image, tf.float32) / 255.0, label))
        .cache()
        .shuffle(10)
        .batch(4, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
    for image, label in dataset:
        assert image.shape == (4, 4)
        np.testing.assert_allclose(image, images[label] / 255.0)
    assert dataset.element_spec == (
        tf.TensorSpec((4, 4), tf.float32),
        tf.TensorSpec((4,), tf.int64),
    )
