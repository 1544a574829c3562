"""What the workers of the tests of saved models run."""

import json
import pathlib
import sys

import numpy as np

NUM_STEPS = 3


def load_and_train(folder, rank):
    """Loads the model of another process, predicts, trains on, and saves it with all workers."""
    import replicax as rx
    from tests.saved_model.models import predict, train

    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = rx.saved_model.load(folder / "model")
    found = {"replicas": strategy.num_replicas_in_sync}
    found["predictions"] = predict(strategy, model).tolist()
    found["losses"] = train(strategy, model, NUM_STEPS)
    found["later"] = predict(strategy, model).tolist()
    with strategy.scope():
        kept = {**model.functions, **{key: model[key] for key in ("w", "layers/0", "seen")}}
        found["path"] = rx.saved_model.save(kept, folder / "by_workers")
    again = rx.saved_model.load(folder / "by_workers")
    found["again"] = np.asarray(again.predict(np.ones((2, 4), np.float32))).tolist()
    return found


def damaged(folder, rank):
    """The second worker finds no model, and both say so."""
    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        try:
            rx.saved_model.load(folder / ("model" if rank == 0 else "none"))
        except rx.saved_model.SavedModelError as error:
            return {"error": str(error)}
    return {"error": None}


if __name__ == "__main__":
    name, own, rank, shared, *_ = sys.argv[1:]
    result = globals()[name](pathlib.Path(shared), int(rank))
    (pathlib.Path(own) / f"result-{rank}").write_text(json.dumps(result))
