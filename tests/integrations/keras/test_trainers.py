"""Keras's own tests of its trainer, and what stands for each of them here."""

import ast
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tests.integrations.keras.problem import mirrored, require_equal
from tests.integrations.keras.trainers import TRAINERS
from tests.tiers import full_only

HERE, FEATURES, STYLES = "trainers.", "features.", "styles."
OF_TENSORFLOW = "of TensorFlow's backend: "
OF_TORCH = "of torch's backend: "

COUNTERPARTS = {
    "test_metric_tracking": HERE + "a_metric_of_the_model",
    "test_nested_trainer_metrics": HERE + "a_compiled_model_in_another",
    "test_nested_trainer_metrics_without_compile": STYLES + "nested",
    "test_multiple_compiles": STYLES + "compiled_again",
    "test_compile_eager_vs_jit_torch": OF_TORCH + "jit_compile",
    "test_fit_flow": FEATURES + "run_eagerly, without_jit; test_equality",
    "test_fit_with_data_adapter": FEATURES + "generator, py_dataset, grain_dataset; tests_adapters",
    "test_fit_with_val_split": FEATURES + "validation_split",
    "test_fit_with_custom_train_step": FEATURES + "own_train_step",
    "test_fit_sparse": OF_TENSORFLOW + "sparse tensors",
    "test_evaluate_flow": FEATURES + "predict_and_evaluate",
    "test_evaluate_with_custom_test_step": STYLES + "own_test_step_and_predict_step",
    "test_evaluate_sparse": OF_TENSORFLOW + "sparse tensors",
    "test_predict_flow": FEATURES + "predict_and_evaluate",
    "test_predict_flow_struct": STYLES + "predictions_of_every_form",
    "test_predict_sparse": OF_TENSORFLOW + "sparse tensors",
    "test_fit_eval_flow_for_jax_model_weights": "test_saving; test_growth: weights stay in place",
    "test_steps_per_execution_steps_count": FEATURES + "steps_per_execution",
    "test_steps_per_execution_unrolled_steps_steps_count": OF_TENSORFLOW + "unrolled_steps",
    "test_predict_preserve_order": HERE + "predictions_in_order_of_uneven_batches",
    "test_predict_generator": HERE + "predictions_in_order_of_uneven_batches",
    "test_steps_per_execution_steps_count_unknown_dataset_size": HERE
    + "several_steps_of_a_generator",
    "test_steps_per_execution_steps_per_epoch": HERE + "steps_that_do_not_divide_an_epoch",
    "test_steps_per_epoch": HERE + "steps_that_do_not_divide_an_epoch",
    "test_max_epochs_and_steps": HERE + "a_limit_of_epochs_and_steps",
    "test_steps_per_execution_steps_per_epoch_unknown_data_size": HERE
    + "several_steps_of_a_generator",
    "test_steps_per_execution_steps_count_without_training": STYLES + "predictions_of_every_form",
    "test_fit_with_different_batch_size_same_loss": HERE + "one_loss_for_every_batch_size",
    "test_evaluate_with_different_batch_size_same_loss": HERE + "one_loss_for_every_batch_size",
    "test_adds_loss_scaling_optimizer": FEATURES + "mixed_float16, mixed_bfloat16",
    "test_loss_scaling_prevents_underflow": STYLES + "loss_scaling_that_grows",
    "test_training_arg": STYLES + "subclassed; test_batch_norm",
    "test_on_batch_methods": FEATURES + "on_batch",
    "test_on_batch_methods_without_training": FEATURES + "on_batch",
    "test_nested_input_predict": HERE + "a_list_and_a_dictionary_of_inputs",
    "test_for_eval_epoch_iterator": STYLES + "validation_now_and_then",
    "test_callback_methods_keys": HERE + "names_of_logs",
    "test_internal_only_loss": HERE + "only_a_loss_of_a_layer",
    "test_trainer_with_raggeds": OF_TENSORFLOW + "ragged tensors",
    "test_predict_dropout": "below",
    "test_recompile": STYLES + "compiled_again",
    "test_evaluate_return_list_respect_metrics_order": HERE + "metrics_in_their_order",
    "test_nested_inputs": HERE + "a_list_and_a_dictionary_of_inputs",
    "test_validation_data_infinite_generator": HERE + "endless_data_with_steps",
    "test_stop_loop": HERE + "stopped_by_a_callback",
    "test_constraints_are_applied": FEATURES + "constraint",
    "test_rng_updated_during_predict": "below",
    "test_callbacks_can_update_state_at_batch_boundary": HERE + "counters_that_callbacks_change",
    "test_metric_update_in_compute_loss": HERE + "a_metric_of_the_model",
    "test_fwd_pass_loss_presence_in_compute_loss": FEATURES + "add_loss",
    "test_evaluate_with_custom_compute_loss": HERE + "a_loss_of_the_model_in_evaluate",
    "test_compute_loss_no_training_backwards_compatibility": FEATURES + "own_compute_loss",
    "test_loss_weights": STYLES + "weights_for_each_output",
    "test_partial_loss_partial_label": HERE + "losses_of_some_outputs",
    "test_symbolic_build": FEATURES + "model_built_by_fit",
    "test_jit_compile_with_tf_determinism": OF_TENSORFLOW + "determinism",
    "test_retracing": "test_growth: nothing is compiled twice",
    "test_retracing_predict": "test_growth: nothing is compiled twice",
    "test_jit_fit_with_out_shardings_logic": "keras.distribution is refused: test_misuse",
}
"""By the name of Keras's test: the program, or the test, here; or why there is none."""


def test_every_trainer_test_of_keras_has_its_row() -> None:
    path = pathlib.Path(keras.__file__).parent / "src" / "trainers" / "trainer_test.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (case,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TestTrainer"
    ]
    names = {node.name for node in case.body if isinstance(node, ast.FunctionDef)}
    assert {name for name in names if name.startswith("test_")} <= COUNTERPARTS.keys()


def test_every_program_has_a_row() -> None:
    named = {text.removeprefix(HERE) for text in COUNTERPARTS.values() if text.startswith(HERE)}
    assert named == TRAINERS.keys()


QUICK = {"losses_of_some_outputs"}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("name", [n if n in QUICK else full_only(n) for n in TRAINERS])
def test_a_program_gives_what_it_gives_on_one_device(name: str) -> None:
    require_equal(TRAINERS[name], mirrored(3))


class AlwaysDrops(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(7)

    def call(self, x: Any) -> Any:
        return keras.random.dropout(x, 0.5, seed=self.seed)


@pytest.mark.slow
def test_random_numbers_go_on_from_batch_to_batch_of_predict() -> None:
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((20,)), AlwaysDrops()])
    ones = np.ones((8, 20), "float32")
    first, again = (model.predict(ones, batch_size=4, verbose=0) for _ in range(2))
    rows = {row.tobytes() for row in (*first, *again)}
    assert len(rows) == 16  # each row of each batch and each call has a mask of its own
