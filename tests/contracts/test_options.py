"""RunOptions and cross-device ops: what each does, seen in the compiled program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax.core import notices


def replica_ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, jnp.float32)
    )


def all_reduce(*values):
    return rx.get_replica_context().all_reduce("SUM", values)


def mirrored(count, ops):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)], cross_device_ops=ops)


def operands(strategy, *arrays):
    """How many arrays all the all-reduces of the compiled step carry."""
    text = rx.function(all_reduce).lower_run(strategy, *arrays).compile().as_text()
    calls = re.findall(r" all-reduce(?:-start)?\(([^)]*)\)", text)
    return sum(len(call.split(",")) for call in calls)


# -- RunOptions ---------------------------------------------------------------------------------


def test_the_defaults_are_the_documented_ones():
    options = rx.RunOptions()
    assert options.experimental_enable_dynamic_batch_size is True
    assert options.experimental_bucketizing_dynamic_shape is False
    assert options.experimental_xla_options is None


def test_options_cannot_be_changed():
    given = {"xla_cpu_enable_fast_math": True}
    options = rx.RunOptions(experimental_xla_options=given)
    given["other"] = 1
    assert dict(options.experimental_xla_options) == {"xla_cpu_enable_fast_math": True}
    with pytest.raises(AttributeError, match="experimental_enable_dynamic_batch_size"):
        options.experimental_enable_dynamic_batch_size = False


def test_an_xla_option_reaches_the_compiler(strategy, compiled, tmp_path):
    options = rx.RunOptions(experimental_xla_options={"xla_dump_to": str(tmp_path)})
    result = compiled(strategy, lambda x: x + 1, (replica_ids(strategy),), options=options)
    assert float(strategy.experimental_local_results(result)[0]) == 1.0
    assert list(tmp_path.glob("*after_optimizations.txt"))


def test_an_unknown_xla_option_fails_the_compilation(strategy, compiled):
    options = rx.RunOptions(experimental_xla_options={"xla_no_such_option": True})
    with pytest.raises(Exception, match="xla_no_such_option"):
        compiled(strategy, lambda x: x + 1, (1.0,), options=options)
    assert float(strategy.reduce("MEAN", compiled(strategy, lambda x: x + 1, (1.0,)))) == 2.0


def test_a_known_xla_option_changes_nothing_that_it_should_not(strategy, compiled):
    options = rx.RunOptions(experimental_xla_options={"xla_cpu_enable_fast_math": True})
    result = compiled(strategy, lambda x: x + 1, (replica_ids(strategy),), options=options)
    values = [float(v) for v in strategy.experimental_local_results(result)]
    assert values == [i + 1.0 for i in range(strategy.num_replicas_in_sync)]


def test_xla_options_of_one_run_do_not_stick_to_the_function(strategy, tmp_path):
    step = rx.function(lambda x: x + 1)
    strategy.run(step, (1.0,))
    options = rx.RunOptions(experimental_xla_options={"xla_dump_to": str(tmp_path)})
    strategy.run(step, (1.0,), options=options)
    dumped = len(list(tmp_path.iterdir()))
    assert dumped > 0
    strategy.run(step, (1.0,))
    assert len(list(tmp_path.iterdir())) == dumped


def test_xla_options_of_an_eager_run_say_once_that_they_do_nothing(strategy, eager):
    notices.forget("eager xla options")
    options = rx.RunOptions(experimental_xla_options={"xla_cpu_enable_fast_math": True})
    with pytest.warns(rx.ReplicaxWarning, match="no effect on an eager run"):
        eager(strategy, lambda: None, options=options)
    eager(strategy, lambda: None, options=options)


def test_uneven_shapes_are_refused_where_dynamic_batch_sizes_are_off(many, execute):
    options = rx.RunOptions(experimental_enable_dynamic_batch_size=False)
    count = many.num_replicas_in_sync
    even = many.distribute_batch(np.ones(2 * count, np.float32))
    uneven = many.distribute_batch(np.ones(2 * count - 1, np.float32))
    result = execute(many, lambda x: x.sum(), (even,), options=options)
    assert float(many.reduce("SUM", result)) == 2 * count
    with pytest.raises(ValueError, match=r"different shapes \[\(2,\).*dynamic_batch_size=False"):
        execute(many, lambda x: x.sum(), (uneven,), options=options)
    assert float(many.reduce("SUM", execute(many, lambda x: x.sum(), (uneven,)))) == 2 * count - 1


def test_bucketizing_says_once_that_it_changes_nothing(strategy, execute):
    notices.forget("bucketizing")
    options = rx.RunOptions(experimental_bucketizing_dynamic_shape=True)
    with pytest.warns(rx.ReplicaxWarning, match="experimental_bucketizing_dynamic_shape") as caught:
        execute(strategy, lambda: 1, options=options)
    assert len(caught) == 1
    assert execute(strategy, lambda: 1, options=options) == 1


BAD_OPTIONS = {
    "dynamic": ({"experimental_enable_dynamic_batch_size": "yes"}, "is 'yes'; expected True or"),
    "bucketizing": ({"experimental_bucketizing_dynamic_shape": 1}, "is 1; expected True or False"),
    "xla options": ({"experimental_xla_options": "fast"}, "is 'fast'; expected a mapping"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_refused_when_it_is_made(case):
    fields, text = BAD_OPTIONS[case]
    with pytest.raises(ValueError, match=text):
        rx.RunOptions(**fields)


# -- cross-device ops ---------------------------------------------------------------------------

SMALL = (jnp.ones(3), jnp.ones(4), jnp.ones(5), jnp.ones((2, 2)))


def packed(num_packs):
    notices.forget(("cross device ops", "NcclAllReduce"))
    with pytest.warns(rx.ReplicaxWarning, match="NcclAllReduce is the default all-reduce"):
        return mirrored(2, rx.NcclAllReduce(num_packs=num_packs))


def test_the_default_packs_all_small_values_into_one_operand():
    assert operands(mirrored(2, None), *SMALL) == 1
    assert operands(mirrored(2, rx.CrossDeviceOps()), *SMALL) == 1


@pytest.mark.parametrize("num_packs, expected", [(1, 1), (2, 2), (4, 4), (0, 4)])
def test_num_packs_sets_the_number_of_operands(num_packs, expected):
    assert operands(packed(num_packs), *SMALL) == expected


def test_large_values_travel_alone_and_types_do_not_mix():
    large = jnp.ones(20_000)
    assert operands(mirrored(2, None), large, *SMALL) == 2
    assert operands(mirrored(2, None), jnp.ones(2, jnp.int32), *SMALL) == 2


@pytest.mark.parametrize("kind", [rx.NcclAllReduce, rx.HierarchicalCopyAllReduce])
def test_the_named_all_reduces_are_the_default_and_say_so_once(kind, execute):
    notices.forget(("cross device ops", kind.__name__))
    with pytest.warns(rx.ReplicaxWarning, match=f"{kind.__name__} is the default") as caught:
        strategy = mirrored(3, kind())
        mirrored(3, kind())
    assert len(caught) == 1
    result = execute(strategy, all_reduce, (replica_ids(strategy), *SMALL))
    expected = execute(mirrored(3, None), all_reduce, (replica_ids(strategy), *SMALL))
    for mine, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert operands(strategy, *SMALL) == 1


def test_num_packs_must_not_be_negative():
    with pytest.raises(ValueError, match="num_packs is -1; expected 0 or more"):
        rx.NcclAllReduce(num_packs=-1)


@pytest.mark.parametrize("device", [None, "CPU:0", "CPU:2"])
def test_reduction_to_one_device_gives_the_same_sums(execute, device):
    strategy = mirrored(3, rx.ReductionToOneDevice(device))

    def replica_fn(x):
        context = rx.get_replica_context()
        return context.all_reduce("SUM", x), context.all_reduce("MEAN", x + 1)

    total, mean = execute(strategy, replica_fn, (replica_ids(strategy),))
    assert [float(v) for v in strategy.experimental_local_results(total)] == [3.0] * 3
    assert [float(v) for v in strategy.experimental_local_results(mean)] == [2.0] * 3
    assert float(strategy.reduce("SUM", replica_ids(strategy), axis=None)) == 3.0


@pytest.mark.parametrize("replica_id", [0, 2])
def test_reduction_to_one_device_adds_on_that_device_only(compiled, replica_id):
    added_on = []

    def accumulate(parts):
        jax.debug.callback(lambda i: added_on.append(int(i)), lax.axis_index(rx.REPLICA_AXIS))
        return sum(parts)

    strategy = mirrored(3, rx.ReductionToOneDevice(f"CPU:{replica_id}", accumulate))
    (total,) = compiled(strategy, all_reduce, (replica_ids(strategy),))
    assert float(total) == 3.0
    jax.effects_barrier()
    assert added_on == [replica_id]


def test_reduction_to_one_device_is_visible_in_the_program():
    strategy = mirrored(2, rx.ReductionToOneDevice("CPU:1"))
    text = rx.function(all_reduce).lower_run(strategy, jnp.ones(3)).compile().as_text()
    assert " all-gather" in text
    assert " conditional(" in text
    default = rx.function(all_reduce).lower_run(mirrored(2, None), jnp.ones(3)).compile().as_text()
    assert " all-gather" not in default
    assert " conditional(" not in default


def test_reduction_to_one_device_adds_with_the_given_function(execute):
    def largest(parts):
        return jnp.max(jnp.stack(parts), axis=0)

    strategy = mirrored(3, rx.ReductionToOneDevice("CPU:0", accumulation_fn=largest))
    (result,) = execute(strategy, all_reduce, (replica_ids(strategy),))
    assert float(result) == 2.0


def test_a_device_outside_the_strategy_is_refused():
    with pytest.raises(ValueError, match=r"'CPU:5'.*not one of the strategy's.*CPU:0"):
        mirrored(2, rx.ReductionToOneDevice("CPU:5"))


def test_cross_device_ops_must_be_cross_device_ops():
    with pytest.raises(TypeError, match=r"cross_device_ops is 'nccl'; expected an instance"):
        mirrored(2, "nccl")
