"""Training from a distributed dataset, stopped in the middle of an epoch and continued.

A shuffled, batched pipeline is divided among the replicas. After some steps the run is
"interrupted": the variables and the position of the iterator are all that is kept. A
second run, on half as many replicas, continues with the very next batch, and ends where
an uninterrupted run ends. Run it with: python examples/datasets.py
"""

import json

import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.data import Dataset

NUM_REPLICAS = 8
GLOBAL_BATCH_SIZE = 32
EPOCHS = 30
STOP_AFTER = 9  # steps: the third batch of the second epoch of 7
LEARNING_RATE = 1.0


def make_pipeline(num_examples=200):
    """Global batches of points and whether each lies in the unit circle."""
    points = np.random.default_rng(0).uniform(-1.5, 1.5, (num_examples, 2)).astype(np.float32)
    inside = (np.square(points).sum(axis=1) < 1.0).astype(np.float32)

    def with_squares(point, label):  # on the host, one example at a time
        return {"features": np.concatenate([point, np.square(point)]), "label": label}

    examples = Dataset.from_tensor_slices((points, inside)).shuffle(num_examples, seed=1)
    return examples.map(with_squares).batch(GLOBAL_BATCH_SIZE)


class Training:
    """Logistic regression on the batches of a distributed dataset.

    Everything that has to be kept is in `checkpoint`, and goes into JSON.
    """

    def __init__(self, strategy):
        self._strategy = strategy
        with strategy.scope():
            self.weights = rx.Variable(jnp.zeros(4))
            self.bias = rx.Variable(0.0)
        self._dataset = strategy.distribute_dataset(make_pipeline())
        self._iterator = iter(self._dataset)
        self._step = rx.function(self._train_on)

    def logits(self, features):
        return features @ self.weights + self.bias

    def _replica_step(self, batch):
        def total_loss():
            logits = self.logits(batch["features"])
            return jnp.sum(jnp.logaddexp(0.0, logits) - batch["label"] * logits)

        loss, gradients = rx.value_and_grad(total_loss, [self.weights, self.bias])
        count = float(len(batch["label"]))  # the last batch of an epoch has 8 examples, not 32
        return rx.get_replica_context().all_reduce("SUM", (count, loss, gradients))

    def _train_on(self, batch):
        count, loss, gradients = self._strategy.run(self._replica_step, args=(batch,))
        for variable, gradient in zip([self.weights, self.bias], gradients, strict=True):
            variable.assign_sub(LEARNING_RATE * gradient / count)
        return loss / count

    def run(self, num_steps):
        """The losses of the next `num_steps` steps, however many epochs they are."""
        losses = []
        while len(losses) < num_steps:
            batch = next(self._iterator, None)
            if batch is None:
                self._iterator = iter(self._dataset)  # the next epoch, in another order
                continue
            losses.append(self._step(batch))
        return [float(loss) for loss in losses]

    def checkpoint(self):
        """All that is needed to continue, as JSON."""
        return json.dumps(
            {
                "weights": self.weights.numpy().tolist(),
                "bias": self.bias.numpy().tolist(),
                "input": self._iterator.get_state(),  # batches read ahead count as not taken
            }
        )

    def restore(self, text):
        saved = json.loads(text)
        self.weights.assign(saved["weights"])
        self.bias.assign(saved["bias"])
        self._iterator.set_state(saved["input"])

    def predict(self):
        """The predictions for one pass, with the labels that belong to them."""

        @rx.function
        def predicted(batch):
            return self.logits(batch["features"]) > 0.0, batch["label"] > 0.5

        return self._strategy.predict(predicted, self._dataset)


def train(strategies, *, stop_after=STOP_AFTER):
    """Trains under the first strategy, continues under the second; the last and all losses."""
    first, second = strategies
    num_steps = EPOCHS * len(first.distribute_dataset(make_pipeline()))
    training = Training(first)
    losses = training.run(stop_after)
    saved = training.checkpoint()
    training = Training(second)
    training.restore(saved)
    losses += training.run(num_steps - stop_after)
    return training, losses, saved


def main():
    rx.set_virtual_devices(NUM_REPLICAS)
    many = rx.MirroredStrategy()
    fewer = rx.MirroredStrategy([f"CPU:{i}" for i in range(NUM_REPLICAS // 2)])
    interrupted, losses, saved = train((many, fewer))
    print(f"position when interrupted: {json.loads(saved)['input']}")
    print(f"loss {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last of {len(losses)}")

    whole = Training(many)
    difference = np.abs(np.array(whole.run(len(losses))) - losses).max()
    print(f"an uninterrupted run has the same losses, within {difference:.0e}")

    predicted, labels = interrupted.predict()
    print(f"right for {np.mean(predicted == labels):.0%} of {len(labels)} points")


if __name__ == "__main__":
    main()
