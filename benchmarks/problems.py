"""Data and initial values, the same for every peer: NumPy only, no framework."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

SIZES = (784, 512, 512, 10)
VOCABULARY, DEPTH, WIDTH, HEADS, LENGTH = 1024, 4, 256, 4, 128
SMALL = 64
BATCH_SHAPE = (256, 784)
PICTURES = (128, 28, 28, 1)
CHANNELS = (16, 32)
EMPTY_SIZE = 8
EMPTY_RATE = 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What is trained, on one global batch over and over.

    Attributes:
        model: mlp, convnet, transformer or squares: which loss function.
        optimizer: sgd, momentum or adam.
        rate: The learning rate.
        params: Initial values, in the order in which the model takes them.
        batch: Arrays whose dim 0 is that of the examples.
    """

    model: str
    optimizer: str
    rate: float
    params: list[np.ndarray]
    batch: tuple[np.ndarray, ...]

    @property
    def num_examples(self) -> int:
        """In the global batch."""
        return len(self.batch[0])


MOMENTUM = 0.9
ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}


def problem_of(workload: str, variant: str) -> Problem:
    """The training problem of W2, W3, W4, W7 and W11."""
    if workload == "W3":
        return Problem("transformer", "adam", 1e-3, _transformer(), _tokens())
    if workload == "W4":
        count = int(variant.partition(" ")[0])
        return Problem("squares", "sgd", 1e-3, _small(count), (_images(8, SMALL),))
    if workload == "W11":
        digits = np.random.default_rng(2).integers(0, 10, PICTURES[0]).astype(np.int32)
        pictures = np.random.default_rng(1).random(PICTURES, np.float32)
        return Problem("convnet", variant, 1e-3, _convnet(), (pictures, digits))
    rate = {"momentum": 1e-2, "adam": 1e-3}[variant]
    labels = np.random.default_rng(2).integers(0, SIZES[-1], BATCH_SHAPE[0]).astype(np.int32)
    return Problem("mlp", variant, rate, _mlp(), (_images(*BATCH_SHAPE), labels))


def _images(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(1).random((rows, columns), np.float32)


def _mlp() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    params = []
    for rows, columns in itertools.pairwise(SIZES):
        params.append((rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32))
        params.append(np.zeros(columns, np.float32))
    return params


def _convnet() -> list[np.ndarray]:
    """Kernel and bias of two convolutions of 3 x 3, each before a pooling, and of the output."""
    rng = np.random.default_rng(0)
    shapes = [(3, 3, *pair) for pair in itertools.pairwise((PICTURES[-1], *CHANNELS))]
    shapes.append((5 * 5 * CHANNELS[-1], 10))
    params = []
    for shape in shapes:
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        params.append((rng.normal(size=shape) * scale).astype(np.float32))
        params.append(np.zeros(shape[-1], np.float32))
    return params


def _small(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=SMALL).astype(np.float32) for _ in range(count)]


def _tokens() -> tuple[np.ndarray, ...]:
    return (np.random.default_rng(1).integers(0, VOCABULARY, (16, LENGTH + 1)).astype(np.int32),)


def _transformer() -> list[np.ndarray]:
    """Embedding, positions; of each layer 10 arrays; the last norm, and the output."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 0.02).astype(np.float32)

    def norm() -> list[np.ndarray]:
        return [np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)]

    params = [normal(VOCABULARY, WIDTH), normal(LENGTH, WIDTH)]
    for _ in range(DEPTH):
        params += [*norm(), normal(WIDTH, 3 * WIDTH), normal(WIDTH, WIDTH), *norm()]
        params += [normal(WIDTH, 4 * WIDTH), np.zeros(4 * WIDTH, np.float32)]
        params += [normal(4 * WIDTH, WIDTH), np.zeros(WIDTH, np.float32)]
    return [*params, *norm(), normal(WIDTH, VOCABULARY)]


def empty_step(replicas: int) -> tuple[np.ndarray, np.ndarray]:
    """The variable of W1, and what each replica multiplies it with."""
    rows = np.arange(replicas, dtype=np.float32)[:, None]
    return np.ones(EMPTY_SIZE, np.float32), np.broadcast_to(1 + rows, (replicas, EMPTY_SIZE)).copy()


def ready_batches() -> list[np.ndarray]:
    """What W6 reads: few different numbers, so that they can be compressed."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 32, BATCH_SHAPE).astype(np.float32) / 32 for _ in range(8)]


def megabytes(variant: str) -> int:
    """The number of floats of W8, from a name such as ``reduce 16 MB``."""
    return int(variant.split()[1]) * 2**20 // 4
