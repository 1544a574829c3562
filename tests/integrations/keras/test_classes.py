"""One training step with every layer and every metric of Keras that its defaults can make.

The tables are generated from ``keras.layers`` and ``keras.metrics``. What is left out is listed
with the reason.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.integrations.keras.models import CROSS_ENTROPY
from tests.integrations.keras.problem import mirrored, normal, require_equal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"),  # metrics of Keras ask
    pytest.mark.filterwarnings("ignore:You are passing weight as `float`"),
]

ROWS = 6
FLAT, SERIES, IMAGE, VOLUME = (6,), (6, 4), (6, 6, 3), (5, 5, 5, 2)

IMAGE_LAYERS = (
    *("CenterCrop", "ContrastLimitedAdaptiveHistogramEqualization", "Resizing", "Solarization"),
)

LAYER_ARGUMENTS: dict[str, dict[str, Any]] = {
    **{name: {"units": 3} for name in ("Dense", "LSTM", "GRU", "SimpleRNN")},
    **{
        f"Conv{dims}D{suffix}": {"filters": 2, "kernel_size": 2}
        for dims in (1, 2, 3)
        for suffix in ("", "Transpose")
    },
    **{f"SeparableConv{dims}D": {"filters": 2, "kernel_size": 2} for dims in (1, 2)},
    **{f"DepthwiseConv{dims}D": {"kernel_size": 2} for dims in (1, 2)},
    **{f"ConvLSTM{dims}D": {"filters": 2, "kernel_size": 2} for dims in (1, 2, 3)},
    **{
        f"Adaptive{kind}Pooling{dims}D": {"output_size": 2}
        for kind in ("Average", "Max")
        for dims in (1, 2, 3)
    },
    **{f"AveragePooling{dims}D": {"pool_size": 2} for dims in (1, 2, 3)},
    **{name: {"height": 4, "width": 4} for name in ("CenterCrop", "Resizing")},
    "Rescaling": {"scale": 0.5},
    "Activation": {"activation": "tanh"},
    "EinsumDense": {"equation": "ab,bc->ac", "output_shape": 3},
    "Permute": {"dims": (2, 1)},
    "RepeatVector": {"n": 2},
    "Reshape": {"target_shape": (3, 2)},
    "GroupNormalization": {"groups": 2},
}

RANDOM: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            *("AugMix", "RandAugment", "RandomErasing", "RandomFlip"),
            *("RandomGaussianBlur", "RandomGrayscale", "RandomInvert", "RandomPerspective"),
            "RandomShear",
        )
    },
    **{
        name: {"factor": 0.2}
        for name in (
            *("RandomBrightness", "RandomColorDegeneration", "RandomContrast", "RandomHue"),
            *("RandomRotation", "RandomSaturation", "RandomSharpness"),
        )
    },
    "RandomColorJitter": {"brightness_factor": 0.2},
    "RandomPosterization": {"factor": 4},
    "RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2},
    "RandomZoom": {"height_factor": 0.2},
    **{name: {"rate": 0.3} for name in ("AlphaDropout", "Dropout", "GaussianDropout")},
    **{f"SpatialDropout{dims}D": {"rate": 0.3} for dims in (1, 2, 3)},
    "GaussianNoise": {"stddev": 0.3},
}
"""Other numbers on every replica, as documented; without training they are those of one device."""

LAYERS_LEFT_OUT: dict[str, str] = {
    "MelSpectrogram": "a model with it diverges, in Keras alone, too",
    **dict.fromkeys(("RandomCrop", "RandomElasticTransform"), "fail; not known whether in Keras"),
    **dict.fromkeys(("CutMix", "MixUp"), "take images together with labels, so not in a model"),
    "BatchNormalization": "each replica normalises its own part: test_batch_norm has a reference",
    **dict.fromkeys(("AutoContrast", "Equalization"), "gives back its input, which Keras refuses"),
    **dict.fromkeys(("Layer", "InputLayer", "Wrapper", "Pipeline"), "nothing to compute"),
    **dict.fromkeys(
        (
            *("HashedCrossing", "Hashing", "IntegerLookup", "StringLookup", "TextVectorization"),
            *("MaxNumBoundingBoxes", "TFSMLayer", "TorchModuleWrapper", "FlaxLayer", "JaxLayer"),
        ),
        "works on the host, or needs TensorFlow or torch; tests_adapters has TextVectorization",
    ),
}


def _classes(module: Any, base: type) -> dict[str, type]:
    found = [getattr(module, name) for name in dir(module)]
    return {
        value.__name__: value
        for value in found
        if isinstance(value, type) and issubclass(value, base)
    }


def _pair(x: Any) -> list[Any]:
    return [x, layers.Activation("tanh")(x)]


def _tokens(x: Any) -> Any:
    return ops.cast(ops.abs(x) * 2, "int32") % 5


def _tied(x: Any) -> Any:
    embedding = layers.ReversibleEmbedding(5, 4)
    return embedding(embedding(_tokens(x)), reverse=True)


COMPOSED: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda x, name=name: getattr(layers, name)()(_pair(x))
        for name in (
            *("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract"),
            *("AdditiveAttention", "Attention"),
        )
    },
    "Dot": lambda x: layers.Dot(axes=2)(_pair(x)),
    "MultiHeadAttention": lambda x: layers.MultiHeadAttention(2, 2)(x, x),
    "GroupedQueryAttention": lambda x: layers.GroupQueryAttention(2, 2, 1)(x, x),
    "Bidirectional": lambda x: layers.Bidirectional(layers.LSTM(3))(x),
    "TimeDistributed": lambda x: layers.TimeDistributed(layers.Dense(3))(x),
    "RNN": lambda x: layers.RNN(layers.SimpleRNNCell(3))(x),
    "SimpleRNNCell": lambda x: layers.RNN(layers.SimpleRNNCell(3), go_backwards=True)(x),
    "GRUCell": lambda x: layers.RNN(layers.GRUCell(3))(x),
    "LSTMCell": lambda x: layers.RNN(layers.LSTMCell(3))(x),
    "StackedRNNCells": lambda x: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)])(x),
    "SpectralNormalization": lambda x: layers.SpectralNormalization(layers.Dense(3))(x),
    "Lambda": lambda x: layers.Lambda(lambda value: value * 2)(x),
    "Embedding": lambda x: layers.Embedding(5, 3)(_tokens(x)),
    "ReversibleEmbedding": _tied,
    "Discretization": lambda x: ops.cast(layers.Discretization([-0.5, 0.0, 0.5])(x), "float32"),
    "CategoryEncoding": lambda x: layers.CategoryEncoding(5)(_tokens(x[:, 0])),
    "STFTSpectrogram": lambda x: layers.STFTSpectrogram("magnitude", 4, 2, 4)(x),
}
"""Layers that take more than one input, another layer, a function or integers, in a model."""

LAYERS = {
    name: cls
    for name, cls in _classes(layers, keras.Layer).items()
    if name not in {*LAYERS_LEFT_OUT, *RANDOM, *COMPOSED}
}
OF_CHOICES: dict[str, Any] = {"sparse_y_true": False, "sparse_y_pred": False}
METRIC_ARGUMENTS: dict[str, dict[str, Any]] = {
    "IoU": {"num_classes": 3, "target_class_ids": [0, 2], **OF_CHOICES},
    "MeanIoU": {"num_classes": 3, **OF_CHOICES},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "MeanRelativeError": {"normalizer": np.full(3, 0.5, "float32")},
}
OF_CLASSES = (
    *("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"),
    "SparseTopKCategoricalAccuracy",
)
"""Metrics whose targets are the numbers of classes."""
METRICS_LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(("Metric", "MeanMetricWrapper"), "abstract"),
    "BinaryIoU": "takes no weights of examples with several targets, in Keras alone either",
    **dict.fromkeys(("Mean", "Sum"), "not of targets and predictions; every fit uses Mean"),
}
METRICS = {
    name: cls
    for name, cls in _classes(keras.metrics, keras.Metric).items()
    if name not in METRICS_LEFT_OUT
}


def _shape_for(name: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    """The first shape that the layer takes."""
    if name in IMAGE_LAYERS:
        return IMAGE  # it would refuse the others when it runs
    if name.startswith("Adaptive"):
        return {"1": SERIES, "2": IMAGE, "3": VOLUME}[name[-2]]
    shapes = (FLAT, SERIES, IMAGE, VOLUME, (3, 6, 4), (3, 6, 6, 2), (3, 5, 5, 5, 2))
    errors = []
    for shape in shapes:
        try:
            LAYERS[name](**arguments).compute_output_shape((None, *shape))
            inputs = keras.Input(shape)
            LAYERS[name](**arguments)(inputs)
        except Exception as error:
            errors.append(f"{shape}: {error}")
            continue
        return shape
    raise AssertionError("\n".join(errors))


def test_no_exception_of_the_tables_is_out_of_date() -> None:
    assert {*LAYERS_LEFT_OUT, *RANDOM, *COMPOSED} <= _classes(layers, keras.Layer).keys()
    assert METRICS_LEFT_OUT.keys() <= _classes(keras.metrics, keras.Metric).keys()


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_with_a_layer_is_that_of_one_device(name: str) -> None:
    arguments = LAYER_ARGUMENTS.get(name, {})
    shape = _shape_for(name, arguments)
    x, y = normal(ROWS, *shape), normal(ROWS, 2, seed=1)

    def program() -> Any:
        inputs = keras.Input(shape)
        hidden = LAYERS[name](**arguments)(layers.Dense(shape[-1])(inputs))
        hidden = layers.Flatten()(hidden) if len(hidden.shape) > 2 else hidden
        model = keras.Model(inputs, layers.Dense(2)(hidden))
        model.compile("sgd", "mse")
        return model, model.fit(x, y, batch_size=ROWS, verbose=0).history

    require_equal(program, mirrored(2))


@pytest.mark.parametrize("name", COMPOSED)
def test_a_step_with_a_composed_layer_is_that_of_one_device(name: str) -> None:
    x, y = normal(ROWS, *SERIES), normal(ROWS, 2, seed=1)

    def program() -> Any:
        inputs = keras.Input(SERIES)
        hidden = COMPOSED[name](layers.Dense(4)(inputs))
        hidden = layers.Flatten()(hidden) if len(hidden.shape) > 2 else hidden
        model = keras.Model(inputs, layers.Dense(2)(hidden))
        model.compile("sgd", "mse")
        return model, model.fit(x, y, batch_size=ROWS, epochs=2, verbose=0).history

    require_equal(program, mirrored(2))


RANDOM_SHAPES = {"SpatialDropout1D": SERIES, "SpatialDropout3D": VOLUME}


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_layer_trains_and_then_predicts_what_one_device_does(name: str) -> None:
    shape = RANDOM_SHAPES.get(name, IMAGE)
    x = np.random.default_rng(0).uniform(size=(ROWS, *shape)).astype("float32")
    y = normal(ROWS, 2, seed=1)

    def made() -> keras.Model:
        layer = getattr(layers, name)(seed=1, **RANDOM[name])
        model = keras.Sequential([keras.Input(shape), layer, layers.Flatten(), layers.Dense(2)])
        model.compile("sgd", "mse")
        return model

    with mirrored(2).scope():
        model = made()
    history = model.fit(x, y, batch_size=4, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    plain = made()
    plain.set_weights(model.get_weights())
    expected = plain.predict(x, batch_size=4, verbose=0)
    np.testing.assert_allclose(
        model.predict(x, batch_size=4, verbose=0), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_that_of_one_device(name: str) -> None:
    arguments = METRIC_ARGUMENTS.get(name, {})
    random = np.random.default_rng(1)
    x = normal(ROWS + 1, 4)
    y = (random.random((ROWS + 1, 3)) < 0.5).astype("float32")
    if name in OF_CLASSES:
        y = random.integers(0, 3, size=ROWS + 1)
    weights = random.uniform(0.5, 2.0, size=ROWS + 1).astype("float32")

    def program() -> Any:
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="sigmoid")])
        metric, weighted = METRICS[name](**arguments), METRICS[name](name="weighted", **arguments)
        loss = CROSS_ENTROPY if name in OF_CLASSES else "mse"
        model.compile("sgd", loss, metrics=[metric], weighted_metrics=[weighted])
        figures = model.evaluate(
            x, y, batch_size=4, sample_weight=weights, verbose=0, return_dict=True
        )
        return model, figures

    require_equal(program, mirrored(2))
