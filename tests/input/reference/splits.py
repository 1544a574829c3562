"""The observed splits of global batches, and the pipelines that are refused instead."""

import numpy as np

import replicax.tf as tf
from tests.input.reference.rows import ErrorRow, Row

Dataset = tf.data.Dataset

BUCKETS = [
    np.tile(np.arange(1), (3, 1)),
    np.tile(np.arange(2), (3, 1)),
    np.tile(np.arange(3), (2, 1)),
]

STRINGS = "strings stay host arrays of objects"
NO_BUCKETS = "the batches come from a generator: data.Dataset does not sort examples into buckets"
LEAVES_NO_TRACE = "a replication mode holds for the call that asks for it"
OWN_ORDER = (
    "the seed gives another order than TensorFlow's, so only sizes and elements are compared"
)


def generated(signature):
    return Dataset.from_generator(
        lambda: (np.arange(count) for count in (4, 2, 1, 3)), output_signature=signature
    )


SPLITS = (
    Row(
        "range(8).batch(4)",
        lambda: Dataset.range(8).batch(4),
        {2: [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], 3: [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]},
    ),
    Row(
        "range(8).batch(8)",
        lambda: Dataset.range(8).batch(8),
        {2: [[[0, 1, 2, 3], [4, 5, 6, 7]]], 3: [[[0, 1, 2], [3, 4, 5], [6, 7]]]},
    ),
    Row(
        "range(10).batch(4)",
        lambda: Dataset.range(10).batch(4),
        {
            2: [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]],
            3: [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []], [[8], [9], []]],
        },
    ),
    Row(
        "range(9).batch(4)",
        lambda: Dataset.range(9).batch(4),
        {
            2: [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]],
            3: [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []], [[8], [], []]],
        },
    ),
    Row(
        "range(7).batch(3)",
        lambda: Dataset.range(7).batch(3),
        {
            2: [[[0, 1], [2]], [[3, 4], [5]], [[6], []]],
            3: [[[0], [1], [2]], [[3], [4], [5]], [[6], [], []]],
        },
    ),
    Row(
        "range(5).batch(4)",
        lambda: Dataset.range(5).batch(4),
        {2: [[[0, 1], [2, 3]], [[4], []]], 3: [[[0, 1], [2, 3], []], [[4], [], []]]},
    ),
    Row(
        "range(7).batch(5)",
        lambda: Dataset.range(7).batch(5),
        {2: [[[0, 1, 2], [3, 4]], [[5], [6]]], 3: [[[0, 1], [2, 3], [4]], [[5], [6], []]]},
    ),
    Row(
        "range(8).batch(1)",
        lambda: Dataset.range(8).batch(1),
        {
            2: [
                [[0], []],
                [[1], []],
                [[2], []],
                [[3], []],
                [[4], []],
                [[5], []],
                [[6], []],
                [[7], []],
            ],
            3: [
                [[0], [], []],
                [[1], [], []],
                [[2], [], []],
                [[3], [], []],
                [[4], [], []],
                [[5], [], []],
                [[6], [], []],
                [[7], [], []],
            ],
        },
    ),
    Row(
        "range(5).batch(2)",
        lambda: Dataset.range(5).batch(2),
        {
            2: [[[0], [1]], [[2], [3]], [[4], []]],
            3: [[[0], [1], []], [[2], [3], []], [[4], [], []]],
        },
    ),
    Row(
        "range(6).batch(6)",
        lambda: Dataset.range(6).batch(6),
        {2: [[[0, 1, 2], [3, 4, 5]]], 3: [[[0, 1], [2, 3], [4, 5]]]},
    ),
    Row(
        "range(11).batch(6)",
        lambda: Dataset.range(11).batch(6),
        {
            2: [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10]]],
            3: [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10]]],
        },
    ),
    Row(
        "range(0).batch(4)",
        lambda: Dataset.range(0).batch(4),
        {2: [], 3: []},
    ),
    Row(
        "drop_remainder 10/4",
        lambda: Dataset.range(10).batch(4, drop_remainder=True),
        {2: [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], 3: [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]},
    ),
    Row(
        "drop_remainder 10/5 (not div)",
        lambda: Dataset.range(10).batch(5, drop_remainder=True),
        {
            2: [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]]],
            3: [[[0, 1], [2, 3], [4]], [[5, 6], [7, 8], [9]]],
        },
    ),
    Row(
        "batched then map",
        lambda: Dataset.range(6).batch(4).map(lambda x: x * 10),
        {2: [[[0, 10], [20, 30]], [[40], [50]]], 3: [[[0, 10], [20, 30], []], [[40], [50], []]]},
    ),
    Row(
        "batch.repeat(2)",
        lambda: Dataset.range(5).batch(4).repeat(2),
        {
            2: [[[0, 1], [2, 3]], [[4], []], [[0, 1], [2, 3]], [[4], []]],
            3: [[[0, 1], [2, 3], []], [[4], [], []], [[0, 1], [2, 3], []], [[4], [], []]],
        },
    ),
    Row(
        "repeat(2).batch",
        lambda: Dataset.range(5).repeat(2).batch(4),
        {
            2: [[[0, 1], [2, 3]], [[4, 0], [1, 2]], [[3], [4]]],
            3: [[[0, 1], [2, 3], []], [[4, 0], [1, 2], []], [[3], [4], []]],
        },
    ),
    Row(
        "batch.prefetch.take",
        lambda: Dataset.range(12).batch(4).prefetch(2).take(2),
        {2: [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], 3: [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]},
    ),
    Row(
        "padded_batch",
        lambda: (
            Dataset.range(4).map(lambda x: np.full([x], x)).padded_batch(4, padded_shapes=[None])
        ),
        {
            2: [[[[0, 0, 0], [1, 0, 0]], [[2, 2, 0], [3, 3, 3]]]],
            3: [[[[0, 0, 0], [1, 0, 0]], [[2, 2, 0], [3, 3, 3]], np.zeros((0, 3))]],
        },
    ),
    Row(
        "double batch",
        lambda: Dataset.range(8).batch(2).batch(2),
        {
            2: [[[[0, 1]], [[2, 3]]], [[[4, 5]], [[6, 7]]]],
            3: [[[[0, 1]], [[2, 3]], np.zeros((0, 2))], [[[4, 5]], [[6, 7]], np.zeros((0, 2))]],
        },
    ),
    Row(
        "dict",
        lambda: Dataset.from_tensor_slices({"a": np.arange(5), "b": {"c": np.arange(5.0)}}).batch(
            4
        ),
        {
            2: [
                [{"a": [0, 1], "b": {"c": [0.0, 1.0]}}, {"a": [2, 3], "b": {"c": [2.0, 3.0]}}],
                [{"a": [4], "b": {"c": [4.0]}}, {"a": [], "b": {"c": []}}],
            ],
            3: [
                [
                    {"a": [0, 1], "b": {"c": [0.0, 1.0]}},
                    {"a": [2, 3], "b": {"c": [2.0, 3.0]}},
                    {"a": [], "b": {"c": []}},
                ],
                [
                    {"a": [4], "b": {"c": [4.0]}},
                    {"a": [], "b": {"c": []}},
                    {"a": [], "b": {"c": []}},
                ],
            ],
        },
        dtype={"a": "int64", "b": {"c": "float64"}},
    ),
    Row(
        "tuple nested",
        lambda: Dataset.from_tensor_slices(
            (np.arange(5), (np.arange(5.0), {"k": np.arange(5)}))
        ).batch(4),
        {
            2: [
                [([0, 1], ([0.0, 1.0], {"k": [0, 1]})), ([2, 3], ([2.0, 3.0], {"k": [2, 3]}))],
                [([4], ([4.0], {"k": [4]})), ([], ([], {"k": []}))],
            ],
            3: [
                [
                    ([0, 1], ([0.0, 1.0], {"k": [0, 1]})),
                    ([2, 3], ([2.0, 3.0], {"k": [2, 3]})),
                    ([], ([], {"k": []})),
                ],
                [([4], ([4.0], {"k": [4]})), ([], ([], {"k": []})), ([], ([], {"k": []}))],
            ],
        },
        dtype=("int64", ("float64", {"k": "int64"})),
    ),
    Row(
        "from_generator w/ batches 4,2,1,3",
        lambda: generated(tf.TensorSpec((None,), tf.int64)),
        {
            2: [[[0, 1], [2, 3]], [[0], [1]], [[0], []], [[0, 1], [2]]],
            3: [[[0, 1], [2, 3], []], [[0], [1], []], [[0], [], []], [[0], [1], [2]]],
        },
    ),
    Row(
        "from_generator unknown rank",
        lambda: generated(tf.TensorSpec(None, tf.int64)),
        {
            2: [[[0, 1], [2, 3]], [[0], [1]], [[0], []], [[0, 1], [2]]],
            3: [[[0, 1], [2, 3], []], [[0], [1], []], [[0], [], []], [[0], [1], [2]]],
        },
    ),
    Row(
        "mixed batch dims in one element",
        lambda: Dataset.from_tensors((np.arange(4), np.arange(3))),
        {2: [[([0, 1], [0, 1]), ([2, 3], [2])]], 3: [[([0, 1], [0]), ([2, 3], [1]), ([], [2])]]},
        dtype=("int64", "int64"),
    ),
    Row(
        "string",
        lambda: Dataset.from_tensor_slices(["a", "b", "c", "d", "e"]).batch(4),
        {
            2: [[[b"a", b"b"], [b"c", b"d"]], [[b"e"], []]],
            3: [[[b"a", b"b"], [b"c", b"d"], []], [[b"e"], [], []]],
        },
        dtype="object",
        reason=STRINGS,
    ),
    Row(
        "0-size feature",
        lambda: Dataset.from_tensor_slices(np.zeros((4, 0))).batch(4),
        {2: [[[[], []], [[], []]]], 3: [[[[], []], [[], []], np.zeros((0, 0))]]},
        dtype="float64",
    ),
    Row(
        "group_by_window/bucket",
        lambda: Dataset.from_generator(lambda: iter(BUCKETS)),
        {
            2: [[[[0], [0]], [[0]]], [[[0, 1], [0, 1]], [[0, 1]]], [[[0, 1, 2]], [[0, 1, 2]]]],
            3: [
                [[[0]], [[0]], [[0]]],
                [[[0, 1]], [[0, 1]], [[0, 1]]],
                [[[0, 1, 2]], [[0, 1, 2]], np.zeros((0, 3))],
            ],
        },
        reason=NO_BUCKETS,
    ),
    Row(
        "after PER_REPLICA: plain distribute_dataset on same strategy",
        lambda: Dataset.range(8).batch(4),
        {2: [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], 3: [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]},
        after_per_replica=True,
        reason=LEAVES_NO_TRACE,
    ),
)

SHUFFLED = (
    Row(
        "batch then shuffle seeds",
        lambda: Dataset.range(8).shuffle(8, seed=3).batch(4),
        {2: [[2, 2], [2, 2]], 3: [[2, 2, 0], [2, 2, 0]]},
        reason=OWN_ORDER,
    ),
    Row(
        "shuffle reshuffle each epoch",
        lambda: Dataset.range(8).shuffle(8).batch(4),
        {2: [[2, 2], [2, 2]], 3: [[2, 2, 0], [2, 2, 0]]},
        reason=OWN_ORDER,
    ),
)
"""The steps are the sizes of the components."""

ERRORS = (
    ErrorRow(
        "unbatched",
        lambda: Dataset.range(8),
        ValueError,
        r"is a scalar of type int64: its examples are not batched\. Batch them",
        "observed: IndexError from inside; ours says to batch",
    ),
    ErrorRow(
        "unbatched vector elements [4]",
        lambda: Dataset.from_tensor_slices(np.arange(12.0).reshape(3, 4)),
        ValueError,
        r"which no step of it batches\. Batch the examples first",
        "observed: every example is divided as if it were a batch",
    ),
    ErrorRow(
        "ragged",
        lambda: Dataset.from_generator(
            lambda: iter([np.array([[1], [2, 3], [], [4, 5, 6]], object)])
        ),
        ValueError,
        r"which is no array of numbers or strings.*pad ragged ones to one shape",
        "observed: ragged components, which JAX does not have",
    ),
    ErrorRow(
        "ragged via batch",
        lambda: Dataset.range(5).map(np.arange).batch(4),
        ValueError,
        r"has the shapes \(0,\), \(1,\), \(2,\), \(3,\)",
        "examples of different shapes have no dense batch",
    ),
    ErrorRow(
        "ragged via ragged_batch",
        lambda: Dataset.range(5).map(np.arange).ragged_batch(4),
        AttributeError,
        r"Dataset has no 'ragged_batch'\. Use padded_batch",
        "observed: ragged components, which JAX does not have",
    ),
    ErrorRow(
        "sparse",
        lambda: Dataset.range(4).sparse_batch(4, [2]),
        AttributeError,
        r"Dataset has no 'sparse_batch'\. Use padded_batch",
        "observed: sparse components, and an error as soon as one is empty",
    ),
    ErrorRow(
        "tensors scalar in tuple",
        lambda: Dataset.from_tensors((np.arange(4), 3)),
        ValueError,
        r"leaf \[1\] of a data\.Dataset is a scalar .* not batched\. Batch them",
        "observed: IndexError from inside; ours names the leaf",
    ),
    ErrorRow(
        "numpy list passed",
        lambda: [1, 2, 3, 4],
        ValueError,
        r"element of a list of batches is a scalar, 1: the examples are not batched",
        "observed: AttributeError; here a list is one of batches, and its elements are no batches",
    ),
    ErrorRow(
        "None passed",
        lambda: None,
        ValueError,
        r"None was given as a dataset; expected a pipeline of batches",
        "observed: ValueError too, about arguments that the user did not pass",
    ),
    ErrorRow(
        "unbatch after batch",
        lambda: Dataset.range(8).batch(4).unbatch(),
        ValueError,
        r"is a scalar of type int64: its examples are not batched\. Batch them",
        "observed: IndexError from inside; ours says to batch",
    ),
    ErrorRow(
        "window",
        lambda: Dataset.range(8).window(4),
        AttributeError,
        r"Dataset has no 'window'\. Use batch, whose elements are arrays",
        "observed: ValueError about slicing; here there are no datasets of datasets",
    ),
)
