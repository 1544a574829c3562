"""What is measured: the workloads, and which peers take part in each of them."""

from __future__ import annotations

import dataclasses
from typing import Any

LIMIT = "hand-written"
OURS = "replicax"
KERAS, OUR_KERAS = "keras", "replicax keras"
CLOSE = (LIMIT, OURS)
"""Peers whose difference is bounded so closely that they are started more often than others."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A program that does the work of a workload.

    Attributes:
        module: The module of `benchmarks.peers` that has it.
        needs: The packages that must be installed.
        process_per_replica: Whether each replica is a process of its own.
        variables: Environment variables that its processes get.
        min_runs: The least that is measured at once, for a loop that takes long to begin.
    """

    module: str
    needs: tuple[str, ...] = ()
    process_per_replica: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    min_runs: int = 1


PEERS = {
    LIMIT: Peer("hand_written"),
    OURS: Peer("with_replicax"),
    "pmap": Peer("pmapped"),
    "auto-sharded": Peer("auto_sharded"),
    "one psum each": Peer("unpacked"),
    "nnx": Peer("nnx_training", ("flax",)),
    "nnx, ours": Peer("nnx_with_replicax", ("flax",)),
    KERAS: Peer("keras_fit", ("keras",), variables=(("KERAS_BACKEND", "jax"),), min_runs=40),
    OUR_KERAS: Peer(
        "keras_with_replicax", ("keras",), variables=(("KERAS_BACKEND", "jax"),), min_runs=40
    ),
    "tensorflow": Peer("tensorflow_strategy", ("tensorflow",)),
    "tensorflow keras": Peer(
        "tensorflow_keras",
        ("tensorflow", "keras"),
        variables=(("KERAS_BACKEND", "tensorflow"),),
        min_runs=40,
    ),
    "ddp": Peer("torch_ddp", ("torch",), process_per_replica=True),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Some work on some replicas, by all of its peers at the same time.

    Attributes:
        workload: W1 to W11.
        replicas: How many.
        variants: Kinds of the work, measured one after the other in the same processes.
        peers: Who does it.
        processes: Over how many processes the replicas are spread.
        seconds: How long one measurement should take.
        laps: How often each round is repeated, by all peers. The speed of a shared machine
            changes within a second, so that many short measurements compare better.
        turns: How many measurements of the close peers there are for each of these.
        starts: How often the processes of the close peers are started. The same program takes some
            percent more in one process than in the next, depending on where its memory is.
        close: Peers with a bound that is no larger than that.
        variables: Environment variables that the processes of all peers get.
    """

    workload: str
    replicas: int
    variants: tuple[str, ...]
    peers: tuple[str, ...]
    processes: int = 1
    seconds: float = 0.25
    laps: int = 1
    turns: int = 1
    starts: int = 1
    close: tuple[str, ...] = CLOSE
    variables: tuple[tuple[str, str], ...] = ()


# The C library gives freed buffers of some megabytes back to the system, or not: that depends on
# where they happen to be in a process. One program had between 1,200 and 2,900 page faults a step,
# and took up to 40% longer in one process than in the next. With these it has none.
_OPTIONS = "arena_max=1", "mmap_max=0", f"trim_threshold={2**34}"
_KEEPING = (("GLIBC_TUNABLES", ":".join(f"glibc.malloc.{option}" for option in _OPTIONS)),)
_NEAR_TENSORFLOW: dict[str, Any] = {
    "seconds": 0.15,
    "laps": 3,
    "starts": 3,
    "close": (*CLOSE, "tensorflow"),
}
_KERAS = (KERAS, OUR_KERAS)
_JAX = (LIMIT, OURS, "pmap", "auto-sharded")
_IN_TWO = (LIMIT, OURS, "tensorflow", "ddp")
_REDUCING = (LIMIT, OURS, "tensorflow")
_SMALL_REDUCTIONS = ("reduce 1 MB", "all_reduce 1 MB")
_MIDDLE_REDUCTIONS = ("reduce 16 MB", "all_reduce 16 MB")
_LARGE_REDUCTIONS = ("reduce 64 MB", "all_reduce 64 MB")

CASES = (
    *(
        Case("W1", n, ("dispatch", "64 steps"), (*_JAX, "tensorflow"), 1, 0.1, turns=4, starts=2)
        for n in (1, 2, 4, 8)
    ),
    *(
        Case("W2", n, ("momentum", "adam"), (*_JAX, *_others), **_NEAR_TENSORFLOW)
        for _others in [
            ("nnx", "nnx, ours", KERAS, OUR_KERAS, "tensorflow", "tensorflow keras", "ddp")
        ]
        for n in (1, 2, 4)
    ),
    Case(
        "W3",
        2,
        ("adam",),
        (LIMIT, OURS, "auto-sharded", "nnx", "nnx, ours", "tensorflow", "ddp"),
        seconds=0.8,
        turns=2,
        starts=3,
        close=(*CLOSE, "auto-sharded"),
    ),
    *(
        Case("W4", n, ("500 variables",), _of_many, **_NEAR_TENSORFLOW)
        for _of_many in [(*_JAX, "one psum each", "tensorflow", "ddp")]
        for n in (2, 4)
    ),
    *(
        Case("W6", n, ("batches", "step", "waiting", "decompressing"), (LIMIT, OURS, "tensorflow"))
        for n in (2, 4)
    ),
    Case("W7", 2, ("momentum", "adam"), _IN_TWO, 2, seconds=0.2, turns=4, starts=3),
    *(
        case
        for n in (2, 4)
        for case in (
            Case("W8", n, _SMALL_REDUCTIONS, _REDUCING, seconds=0.4, turns=2, starts=5),
            Case("W8", n, _MIDDLE_REDUCTIONS, _REDUCING, turns=2, starts=4, variables=_KEEPING),
            Case("W8", n, _LARGE_REDUCTIONS, _REDUCING, turns=2, starts=4),
        )
    ),
    Case("W9", 2, ("step",), (LIMIT, OURS)),
    *(
        Case("W11", n, ("adam",), (KERAS, OUR_KERAS), seconds=0.5, starts=2, close=_KERAS)
        for n in (1, 2, 4)
    ),
    *(Case("W10", n, ("replicas",), (LIMIT, OURS)) for n in (1, 2, 4, 8, 16)),
    Case(
        "W10",
        2,
        (
            *(f"{n} arguments" for n in (1, 10, 100, 1000)),
            *(
                f"{n} variables" for n in (10, 50, 200, 1000, 5000)
            ),  # the last takes long to compile
        ),
        (LIMIT, OURS),
    ),
)

SMOKE = (
    Case("W1", 2, ("dispatch", "64 steps"), (LIMIT, OURS)),
    Case("W2", 2, ("momentum",), (LIMIT, OURS)),
    Case("W4", 2, ("100 variables",), (LIMIT, OURS)),
    Case("W6", 2, ("batches",), (LIMIT, OURS)),
    Case("W8", 2, ("reduce 1 MB", "all_reduce 16 MB"), (LIMIT, OURS)),
)

WORKLOADS = {
    "W1": "empty step: one small variable, sum, all-reduce, update",
    "W2": "MLP 784-512-512-10, global batch 256",
    "W3": "transformer LM, 4 layers, d 256, sequence 128, batch 16",
    "W4": "500 small variables",
    "W5": "process start to first step",
    "W6": "distributed dataset, batches of 256 x 784 floats",
    "W7": "W2 in two processes",
    "W8": "reduce and all_reduce",
    "W9": "growth of memory over 10,000 steps",
    "W10": "cost against replicas, variables and arguments",
    "W11": "ConvNet by Keras fit, batch of 128 x 28 x 28",
}
