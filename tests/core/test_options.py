"""Options and enumerations: what is accepted, what is refused, and with which text."""

import dataclasses

import pytest

import replicax as rx
from replicax.core.enums import ReduceOp, VariableAggregation, VariableSynchronization
from replicax.core.errors import ReductionError
from replicax.core.options import CommunicationOptions, RunOptions

# -- RunOptions --------------------------------------------------------------------------------


def test_the_defaults_are_the_documented_ones():
    options = RunOptions()
    assert options.experimental_enable_dynamic_batch_size is True
    assert options.experimental_bucketizing_dynamic_shape is False
    assert options.experimental_xla_options is None


def test_options_cannot_be_changed():
    options = RunOptions(experimental_xla_options={"a": 1})
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
        options.experimental_enable_dynamic_batch_size = False
    with pytest.raises(TypeError, match="does not support item assignment"):
        options.experimental_xla_options["a"] = 2


def test_the_mapping_is_copied():
    given = {"a": 1}
    options = RunOptions(experimental_xla_options=given)
    given["a"] = 2
    assert dict(options.experimental_xla_options) == {"a": 1}


@pytest.mark.parametrize(
    "field", ["experimental_enable_dynamic_batch_size", "experimental_bucketizing_dynamic_shape"]
)
@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_flags_must_be_bools(field, value):
    with pytest.raises(ValueError, match=rf"RunOptions\.{field} is {value!r}; expected True or Fa"):
        RunOptions(**{field: value})


@pytest.mark.parametrize("value", ["xla_flag", ["xla_flag"], 3])
def test_xla_options_must_be_a_mapping(value):
    with pytest.raises(ValueError, match=r"experimental_xla_options is .*; expected a mapping"):
        RunOptions(experimental_xla_options=value)


def test_equal_options_are_equal():
    assert RunOptions(experimental_xla_options={"a": 1}) == RunOptions(
        experimental_xla_options={"a": 1}
    )
    assert RunOptions() != RunOptions(experimental_enable_dynamic_batch_size=False)


# -- enumerations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ReduceOp.SUM, ReduceOp.SUM),
        (ReduceOp.MEAN, ReduceOp.MEAN),
        ("SUM", ReduceOp.SUM),
        ("mean", ReduceOp.MEAN),
        ("MeAn", ReduceOp.MEAN),
        (VariableAggregation.SUM, ReduceOp.SUM),
        (VariableAggregation.MEAN, ReduceOp.MEAN),
    ],
)
def test_a_reduce_op_may_be_given_in_several_ways(op, expected):
    assert ReduceOp.parse(op) is expected


@pytest.mark.parametrize(
    "op",
    [
        "MAX",
        "",
        None,
        0,
        sum,
        VariableAggregation.NONE,
        VariableAggregation.ONLY_FIRST_REPLICA,
        VariableSynchronization.AUTO,
        "ReduceOp.SUM",
    ],
    ids=repr,
)
def test_any_other_reduce_op_is_refused_with_its_value(op):
    with pytest.raises(ReductionError, match=r"reduce_op is .*; expected ReduceOp\.SUM") as caught:
        ReduceOp.parse(op)
    assert repr(op) in str(caught.value)


def test_the_members_are_the_documented_ones():
    assert [op.name for op in rx.ReduceOp] == ["SUM", "MEAN"]
    assert [op.value for op in rx.ReduceOp] == ["SUM", "MEAN"]
    assert [m.name for m in rx.VariableSynchronization] == ["AUTO", "NONE", "ON_WRITE", "ON_READ"]
    assert [m.name for m in rx.VariableAggregation] == ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]
    assert [m.value for m in rx.VariableSynchronization] == [0, 1, 2, 3]
    assert [m.value for m in rx.VariableAggregation] == [0, 1, 2, 3]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_timeout_that_nobody_can_wait_for_is_refused(seconds: float):
    with pytest.raises(ValueError, match=r"timeout_seconds is .*; expected more than 0 and at"):
        CommunicationOptions(timeout_seconds=seconds)
