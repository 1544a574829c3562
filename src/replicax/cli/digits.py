"""A small convolutional net on scikit-learn's handwritten digits, trained under any strategy.

Nothing here knows how many replicas there are: the number of devices is chosen by
choosing a strategy, and the numbers that come out are the same. `cli.demo` is the
only caller.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from sklearn.datasets import load_digits

import replicax as rx

NUM_CLASSES = 10
NUM_TEST_IMAGES = 360
BATCH_SIZE = 128
LEARNING_RATE = 0.02
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class Examples:
    """Images and what they show.

    Attributes:
        images: Shape (n, 8, 8, 1), values between 0 and 1.
        labels: Shape (n,), the digit on each image.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batch_size: int, *, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All examples once, in an order given by `seed`; the last batch may be smaller."""
        order = np.random.default_rng(seed).permutation(len(self))
        for start in range(0, len(self), batch_size):
            chosen = order[start : start + batch_size]
            yield self.images[chosen], self.labels[chosen]


def load_examples(num_test_images: int = NUM_TEST_IMAGES) -> tuple[Examples, Examples]:
    """The 1,797 digits, divided into a training and a test set."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, 8, 8, 1) / 16.0).astype(np.float32)
    labels = np.asarray(labels, np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:num_test_images], order[num_test_images:]
    return Examples(images[train], labels[train]), Examples(images[test], labels[test])


class ConvNet:
    """Two convolutions and two dense layers.

    Create it in a strategy's scope: the strategy then decides where the variables live.

    Attributes:
        variables: What training changes.
    """

    def __init__(self, *, seed: int) -> None:
        keys = iter(jax.random.split(jax.random.key(seed), 4))
        self._conv1 = _Weights.create("conv1", (3, 3, 1, 16), next(keys))
        self._conv2 = _Weights.create("conv2", (3, 3, 16, 32), next(keys))
        self._dense1 = _Weights.create("dense1", (4 * 4 * 32, 64), next(keys))
        self._dense2 = _Weights.create("dense2", (64, NUM_CLASSES), next(keys))
        self.variables = [*self._conv1, *self._conv2, *self._dense1, *self._dense2]

    def __call__(self, images: jax.Array) -> jax.Array:
        """The logits of each class, shape (n, 10)."""
        # SiLU and not ReLU: at a kink an error of rounding decides the gradient, and runs that add
        # the same numbers in another order part for good.
        x = jax.nn.silu(_convolve(images, self._conv1, stride=1))
        x = jax.nn.silu(_convolve(x, self._conv2, stride=2))
        x = jax.nn.silu(_multiply(x.reshape(len(x), 4 * 4 * 32), self._dense1))
        return _multiply(x, self._dense2)


class _Weights(NamedTuple):
    """The variables of one layer."""

    kernel: rx.Variable
    bias: rx.Variable

    @classmethod
    def create(cls, name: str, shape: tuple[int, ...], key: jax.Array) -> Self:
        """A random kernel of `shape` and a bias of zeros."""
        kernel = jax.nn.initializers.he_normal()(key, shape)
        return cls(
            rx.Variable(kernel, name=f"{name}/kernel"),
            rx.Variable(jnp.zeros(shape[-1]), name=f"{name}/bias"),
        )


def _multiply(x: jax.Array, weights: _Weights) -> jax.Array:
    return x @ weights.kernel.value + weights.bias.value


def _convolve(x: jax.Array, weights: _Weights, *, stride: int) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    y = lax.conv_general_dilated(x, weights.kernel.value, strides, "SAME", dimension_numbers=layout)
    return y + weights.bias.value


class Momentum:
    """Gradient descent with momentum; its velocities are variables like any other.

    Create it in a strategy's scope, and call `apply` in cross-replica context.
    """

    def __init__(
        self, variables: Sequence[rx.Variable], *, learning_rate: float, momentum: float
    ) -> None:
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._variables = list(variables)
        self._velocities = [
            rx.Variable(jnp.zeros(v.shape, v.dtype), trainable=False, name=f"{v.name}/velocity")
            for v in variables
        ]

    def apply(self, gradients: Sequence[jax.Array]) -> None:
        """Changes each variable by its gradient."""
        rows = zip(self._variables, self._velocities, gradients, strict=True)
        for variable, velocity, gradient in rows:
            velocity.assign(self._momentum * velocity.value + gradient)
            variable.assign_sub(self._learning_rate * velocity.value)


class Trainer:
    """The net, its optimizer and the compiled step.

    Args:
        strategy: Where to train.
        seed: Of the initial weights.
    """

    def __init__(self, strategy: rx.Strategy, *, seed: int) -> None:
        self._strategy = strategy
        with strategy.scope():
            self.model = ConvNet(seed=seed)
            self._optimizer = Momentum(
                self.model.variables, learning_rate=LEARNING_RATE, momentum=MOMENTUM
            )

    def train_on(self, images: np.ndarray, labels: np.ndarray) -> jax.Array:
        """One step on a global batch of any size; returns its mean loss."""
        return self._step(*self._strategy.distribute_batch((images, labels)))

    def accuracy(self, examples: Examples) -> float:
        """The share of `examples` that the net names right."""
        batch = self._strategy.distribute_batch((examples.images, examples.labels))
        return float(self._share_of_hits(*batch))

    @rx.function
    def _step(self, images: rx.PerReplica, labels: rx.PerReplica) -> jax.Array:
        """One program for all replicas: their gradients, the sum of these, the update."""
        count, loss, gradients = self._strategy.run(self._replica_step, args=(images, labels))
        self._optimizer.apply([gradient / count for gradient in gradients])
        return loss / count

    def _replica_step(self, images: jax.Array, labels: jax.Array) -> tuple:
        """Sums over the examples of all replicas: how many, the loss, the gradients.

        Replicas may hold different numbers of examples, so means are taken from
        these sums, once, and not on each replica. One `all_reduce` of everything
        lets small values travel together.
        """

        def total_loss() -> jax.Array:
            log_likelihoods = jax.nn.log_softmax(self.model(images))
            return -jnp.take_along_axis(log_likelihoods, labels[:, np.newaxis], axis=1).sum()

        count = jnp.float32(len(labels))
        loss, gradients = rx.value_and_grad(total_loss, self.model.variables)
        return rx.get_replica_context().all_reduce(rx.ReduceOp.SUM, (count, loss, gradients))

    @rx.function
    def _share_of_hits(self, images: rx.PerReplica, labels: rx.PerReplica) -> jax.Array:
        hits = self._strategy.run(self._replica_hits, args=(images, labels))
        return self._strategy.reduce(rx.ReduceOp.MEAN, hits, axis=0)

    def _replica_hits(self, images: jax.Array, labels: jax.Array) -> jax.Array:
        return self.model(images).argmax(axis=-1) == labels


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingResult:
    """What one training run gave.

    Attributes:
        losses: The mean loss of each step.
        accuracy: The share of test images that were named right, after training.
        images_per_second: Throughput of the epochs after the first, which compiles.
        parameters: The final values of the net's variables, by name.
    """

    losses: np.ndarray
    accuracy: float
    images_per_second: float
    parameters: dict[str, np.ndarray]


def train(
    strategy: rx.Strategy,
    train_set: Examples,
    test_set: Examples,
    *,
    epochs: int,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    on_step: Callable[[], None] = lambda: None,
) -> TrainingResult:
    """Trains a new net under `strategy`.

    Args:
        strategy: Where to train.
        train_set: What to learn from.
        test_set: What to measure the accuracy on.
        epochs: How often to go through `train_set`, at least once.
        seed: Of the initial weights and of the order of the examples.
        batch_size: Images per step, over all replicas.
        on_step: Called after each step.
    """
    trainer = Trainer(strategy, seed=seed)
    losses: list[float] = []
    seconds: list[float] = []
    for epoch in range(epochs):
        started = time.perf_counter()
        in_flight = []
        for images, labels in train_set.batches(batch_size, seed=seed + epoch):
            in_flight.append(trainer.train_on(images, labels))
            on_step()
        losses += [float(loss) for loss in in_flight]  # waits for the epoch's last step
        seconds.append(time.perf_counter() - started)
    timed = seconds[1:] or seconds
    return TrainingResult(
        losses=np.array(losses),
        accuracy=trainer.accuracy(test_set),
        images_per_second=len(train_set) * len(timed) / sum(timed),
        parameters={variable.name: variable.numpy() for variable in trainer.model.variables},
    )


def largest_difference(one: TrainingResult, other: TrainingResult) -> float:
    """The largest absolute difference between two runs' parameters; NaN if one has a NaN."""
    differences = [
        np.abs(one.parameters[name] - value).max() for name, value in other.parameters.items()
    ]
    return float(np.max(differences))
