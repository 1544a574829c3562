"""The observed steps of pipelines that a ``dataset_fn`` makes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import replicax.tf as tf

Dataset = tf.data.Dataset
TensorSpec = tf.TensorSpec

PER_REPLICA = tf.distribute.InputOptions(
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA
)
ON_HOST = tf.distribute.InputOptions(experimental_fetch_to_device=False)

GLOBAL_BATCH_SIZE = 12
ANY_SIZE = TensorSpec((None,), tf.int64)

STEPS_NOT_BATCHES = "observed: the batches of one pipeline, and no len; here the steps of a pass"
NOT_DROPPED = "observed: the incomplete step was dropped; here the other replicas get empty batches"
DROPPED_ALOUD = "elements without a batch dim cannot be empty: dropped as observed, with a warning"
LEAVES_NO_TRACE = "observed: PER_REPLICA stays on in the strategy; here it holds for its own call"


@dataclasses.dataclass(frozen=True)
class FunctionRow:
    """What a ``dataset_fn`` makes, and what each replica gets of it.

    Attributes:
        name: The name of the observation.
        build: Makes the pipeline.
        steps: By number of replicas: for each step, a nest of lists for each replica.
        num_batches: The cardinality that was observed: of one pipeline.
        spec: The spec of one replica's component by number of replicas, before JAX narrows
            it; None is a vector of any size.
        reason: What is not as it was observed, beside `STEPS_NOT_BATCHES`.
        options: What is passed beside the function.
        warning: What a warning says, a pattern with the count by number of replicas.
        after_per_replica: Whether the strategy distributed by PER_REPLICA before.
    """

    name: str
    build: Callable[[], Any]
    steps: dict[int, list[Any]]
    num_batches: int
    spec: dict[int, Any] | None = None
    dtype: Any = "int64"
    reason: str = ""
    options: Any = None
    warning: dict[int, str] | None = None
    after_per_replica: bool = False


THREE = {2: [[[0, 1], [2, 3]], [[4, 5], []]], 3: [[[0, 1], [2, 3], [4, 5]]]}
ALL_ALIKE = {
    2: [[[0, 1], [0, 1]], [[2, 3], [2, 3]], [[4, 5], [4, 5]]],
    3: [[[0, 1], [0, 1], [0, 1]], [[2, 3], [2, 3], [2, 3]], [[4, 5], [4, 5], [4, 5]]],
}
ONE_EACH = {
    4: {2: [[[0], [1]], [[2], [3]]], 3: [[[0], [1], [2]], [[3], [], []]]},
    5: {2: [[[0], [1]], [[2], [3]], [[4], []]], 3: [[[0], [1], [2]], [[3], [4], []]]},
    7: {
        2: [[[0], [1]], [[2], [3]], [[4], [5]], [[6], []]],
        3: [[[0], [1], [2]], [[3], [4], [5]], [[6], [], []]],
    },
}

ROWS = (
    FunctionRow(
        "from_fn range(8).batch(2)",
        lambda: Dataset.range(8).batch(2),
        {
            2: [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
            3: [[[0, 1], [2, 3], [4, 5]], [[6, 7], [], []]],
        },
        num_batches=4,
        spec={2: TensorSpec((2,), tf.int64), 3: ANY_SIZE},
        reason="on 2 replicas every batch is known to have 2 examples, so the spec says so",
    ),
    FunctionRow(
        "from_fn range(6).batch(2) (3 batches)",
        lambda: Dataset.range(6).batch(2),
        THREE,
        num_batches=3,
        spec={2: ANY_SIZE, 3: TensorSpec((2,), tf.int64)},
        reason="on 3 replicas every batch is known to have 2 examples, so the spec says so",
    ),
    FunctionRow(
        "from_fn range(7).batch(2) partial",
        lambda: Dataset.range(7).batch(2),
        {
            2: [[[0, 1], [2, 3]], [[4, 5], [6]]],
            3: [[[0, 1], [2, 3], [4, 5]], [[6], [], []]],
        },
        num_batches=4,
    ),
    FunctionRow(
        "from_fn unbatched",
        lambda: Dataset.range(5),
        {2: [[0, 1], [2, 3]], 3: [[0, 1, 2]]},
        num_batches=5,
        spec={2: TensorSpec((), tf.int64), 3: TensorSpec((), tf.int64)},
        reason=DROPPED_ALOUD,
        warning={2: r"dropped, and 1 element with it", 3: r"dropped, and 2 elements with it"},
    ),
    FunctionRow(
        "from_fn drop_remainder 6/2",
        lambda: Dataset.range(6).batch(2, drop_remainder=True),
        THREE,
        num_batches=3,
        spec={2: ANY_SIZE, 3: TensorSpec((2,), tf.int64)},
        reason=NOT_DROPPED,
    ),
    FunctionRow(
        "from_fn fetch_to_device False",
        lambda: Dataset.range(6).batch(2),
        THREE,
        num_batches=3,
        spec={2: ANY_SIZE, 3: TensorSpec((2,), tf.int64)},
        options=ON_HOST,
    ),
    FunctionRow(
        "from dict spec",
        lambda: Dataset.range(3).map(lambda x: {"a": x}).batch(2),
        {2: [[{"a": [0, 1]}, {"a": [2]}]], 3: [[{"a": [0, 1]}, {"a": [2]}, {"a": []}]]},
        num_batches=2,
        spec={2: {"a": ANY_SIZE}, 3: {"a": ANY_SIZE}},
        dtype={"a": "int64"},
    ),
    *(
        FunctionRow(
            f"fromfn nbatches {count}",
            lambda count=count: Dataset.range(count).batch(1),
            ONE_EACH[count],
            num_batches=count,
            spec={n: TensorSpec((1,), tf.int64) if count % n == 0 else ANY_SIZE for n in (2, 3)},
        )
        for count in ONE_EACH
    ),
    *(
        FunctionRow(
            f"fromfn drop nbatches {count}",
            lambda count=count: Dataset.range(count).batch(1, drop_remainder=True),
            ONE_EACH[count],
            num_batches=count,
            spec={n: TensorSpec((1,), tf.int64) if count % n == 0 else ANY_SIZE for n in (2, 3)},
            reason=NOT_DROPPED,
        )
        for count in ONE_EACH
    ),
    FunctionRow(
        "from_fn PER_REPLICA",
        lambda: Dataset.range(6).batch(2),
        ALL_ALIKE,
        num_batches=3,
        spec={2: TensorSpec((2,), tf.int64), 3: TensorSpec((2,), tf.int64)},
        reason="all pipelines end together, so every batch is known to have 2 examples",
        options=PER_REPLICA,
    ),
    FunctionRow(
        "after PER_REPLICA: plain from_fn on same strategy",
        lambda: Dataset.range(6).batch(2),
        THREE,
        num_batches=3,
        spec={2: ANY_SIZE, 3: TensorSpec((2,), tf.int64)},
        reason=LEAVES_NO_TRACE,
        after_per_replica=True,
    ),
)
