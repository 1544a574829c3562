"""The diff at the head of the Keras page is true: both of its programs run, and train alike."""

import keras
import numpy as np

from replicax.integrations.keras.variables import StrategyVariable
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "keras.md"


def programs() -> tuple[str, str]:
    """The program before the change, and after it."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("```text\n")
    lines = rest.partition("```")[0].splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    return "\n".join(before), "\n".join(after)


def test_the_diff_at_the_head_of_the_page_runs_before_and_after() -> None:
    x = np.random.default_rng(0).normal(size=(100, 8)).astype("float32")
    models = []
    for source in programs():
        names = {"x": x, "y": x.sum(axis=1, keepdims=True)}
        keras.utils.set_random_seed(0)
        exec(compile(source, str(PAGE), "exec"), names)
        models.append(names["model"])
    before, after = models
    kinds = [type(model.weights[0]) for model in models]
    assert kinds == [keras.Variable, StrategyVariable]
    for own, expected in zip(after.get_weights(), before.get_weights(), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)
