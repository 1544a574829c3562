"""One training step with every layer and every metric of Keras that its defaults can make.

The tables are generated from ``keras.layers`` and ``keras.metrics``. What is left out is listed
with the reason.
"""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tests.integrations.keras.problem import mirrored, normal, require_equal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"),  # metrics of Keras ask
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

LEFT_OUT = {
    "random": "other numbers on every replica: test_fit has a test of them",
    "per replica": "normalises each replica's part by itself, as documented: test_fit has a test",
    "abstract": "nothing to compute",
    "host": "works on strings or with TensorFlow, not in a JAX program",
    "whole": "needs more than one input, a function or another layer",
    "cycle": "gives back its input, which a functional model of Keras refuses",
}
LAYERS_LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(
        (
            *("AlphaDropout", "AugMix", "AutoContrast", "CutMix", "Dropout", "GaussianDropout"),
            *("GaussianNoise", "MixUp", "RandAugment", "RandomBrightness"),
            *("RandomColorDegeneration", "RandomColorJitter", "RandomContrast", "RandomCrop"),
            *("RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur"),
            *("RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective"),
            *("RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness"),
            *("RandomShear", "RandomTranslation", "RandomZoom", "SpatialDropout1D"),
            *("SpatialDropout2D", "SpatialDropout3D"),
        ),
        "random",
    ),
    "BatchNormalization": "per replica",
    "Equalization": "cycle",
    **dict.fromkeys(("Layer", "InputLayer", "Wrapper", "Pipeline"), "abstract"),
    **dict.fromkeys(
        (
            *("CategoryEncoding", "Discretization", "HashedCrossing", "Hashing", "IntegerLookup"),
            *("StringLookup", "TextVectorization", "JaxLayer", "FlaxLayer", "TorchModuleWrapper"),
            *("TFSMLayer", "MelSpectrogram", "STFTSpectrogram", "MaxNumBoundingBoxes"),
        ),
        "host",
    ),
    **dict.fromkeys(
        (
            *("Add", "AdditiveAttention", "Attention", "Average"),
            *("Bidirectional", "Concatenate", "Dot", "Embedding", "GRUCell", "LSTMCell"),
            *("GroupedQueryAttention", "Lambda", "MaxNumBoundingBoxes"),
            *("Maximum", "Minimum", "MultiHeadAttention", "Multiply", "RNN", "ReversibleEmbedding"),
            *("SimpleRNNCell", "SpectralNormalization", "StackedRNNCells", "Subtract"),
            "TimeDistributed",
        ),
        "whole",
    ),
}


def _classes(module: Any, base: type) -> dict[str, type]:
    found = [getattr(module, name) for name in dir(module)]
    return {
        value.__name__: value
        for value in found
        if isinstance(value, type) and issubclass(value, base)
    }


LAYERS = {
    name: cls for name, cls in _classes(layers, keras.Layer).items() if name not in LAYERS_LEFT_OUT
}
METRIC_ARGUMENTS: dict[str, dict[str, Any]] = {
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "MeanRelativeError": {"normalizer": np.full(3, 0.5, "float32")},
}
METRICS_LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(("Metric", "MeanMetricWrapper"), "abstract"),
    **dict.fromkeys(("Mean", "Sum"), "not of targets and predictions; every fit uses Mean"),
    **dict.fromkeys(
        ("BinaryIoU", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU"),
        "not supported yet: a compiled step is refused with a TraceError, see docs/keras.md",
    ),
    **dict.fromkeys(
        (
            "SparseCategoricalAccuracy",
            "SparseCategoricalCrossentropy",
            "SparseTopKCategoricalAccuracy",
        ),
        "of targets of another form",
    ),
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
    assert LAYERS_LEFT_OUT.keys() <= _classes(layers, keras.Layer).keys()
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


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_that_of_one_device(name: str) -> None:
    arguments = METRIC_ARGUMENTS.get(name, {})
    random = np.random.default_rng(1)
    x = normal(ROWS + 1, 4)
    y = (random.random((ROWS + 1, 3)) < 0.5).astype("float32")
    weights = random.uniform(0.5, 2.0, size=ROWS + 1).astype("float32")

    def program() -> Any:
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="sigmoid")])
        metric, weighted = METRICS[name](**arguments), METRICS[name](name="weighted", **arguments)
        model.compile("sgd", "mse", metrics=[metric], weighted_metrics=[weighted])
        figures = model.evaluate(
            x, y, batch_size=4, sample_weight=weights, verbose=0, return_dict=True
        )
        return model, figures

    require_equal(program, mirrored(2))
