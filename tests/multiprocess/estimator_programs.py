"""What the processes of the tests of the Estimator run."""

import json
import os
import pathlib
import signal
import sys

MAX_STEPS = 17
SAVE_EVERY = 5


def train(folder, rank, name, num_replicas, kill_after="0"):
    """Trains to the end, or ends by SIGKILL after so many steps of this process."""
    import replicax as rx
    import replicax.tf as tf
    from tests.estimator.models import bits, estimator, train_input

    class Kill(tf.estimator.SessionRunHook):
        steps = 0

        def after_run(self, run_context, run_values):
            self.steps += 1
            if self.steps == int(kill_after):
                os.kill(os.getpid(), signal.SIGKILL)

    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(int(num_replicas))])
    made = estimator(folder / name, strategy, save_checkpoints_steps=SAVE_EVERY)
    start = made.latest_checkpoint()
    made.train(train_input, hooks=[Kill()], max_steps=MAX_STEPS)
    return {"bits": bits(made), "start": start and os.path.basename(start)}


def train_and_evaluate(folder, rank):
    """All workers train and evaluate together, and predict."""
    import numpy as np

    import replicax as rx
    from tests.estimator.models import estimator, eval_input, trained_and_evaluated

    strategy = rx.MultiWorkerMirroredStrategy()
    made = estimator(folder / "cluster", strategy, save_checkpoints_steps=4)
    found = {"replicas": strategy.num_replicas_in_sync}
    found["metrics"] = trained_and_evaluated(made, 12)
    found["logits"] = [float(each["logits"]) for each in made.predict(eval_input)]
    found["w"] = np.asarray(made.get_variable_value("w")).tolist()
    try:
        estimator(folder / "none", strategy, save_checkpoints_secs=1).train(eval_input, steps=1)
    except ValueError as error:
        found["error"] = str(error)
    return found


if __name__ == "__main__":
    name, own, rank, shared, *arguments = sys.argv[1:]
    result = globals()[name](pathlib.Path(shared), int(rank), *arguments)
    (pathlib.Path(own) / f"result-{rank}").write_text(json.dumps(result))
