"""A part of a value that the user has deleted or donated is an error with a name, never a crash."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import DeletedValueError, LostVariableError

pytestmark = pytest.mark.one_worker

SUM = rx.VariableAggregation.SUM


def donate(array):
    """Gives `array` away on the device where it is."""
    (device,) = array.devices()
    with jax.default_device(device):
        jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert array.is_deleted()


ENDS = {"deleted": lambda array: array.delete(), "donated": donate}


@pytest.fixture(params=ENDS)
def end(request):
    """What a user may do to an array that was handed out."""
    return ENDS[request.param]


def batch_of(strategy, rows_less=0):
    size = 2 * strategy.num_replicas_in_sync - rows_less
    return strategy.distribute_batch(np.ones(size, np.float32))


@pytest.mark.parametrize("rows_less", [0, 1], ids=["even", "uneven"])
@pytest.mark.parametrize("num_calls", [0, 1, 4])
def test_a_batch_without_its_last_part_is_refused_by_name(many, execute, end, num_calls, rows_less):
    run = execute.prepare(many, lambda batch: batch["x"].sum())
    batch = batch_of(many, rows_less)
    for _ in range(num_calls):
        run({"x": batch})
    end(many.experimental_local_results(batch)[-1])
    for _ in range(2):
        with pytest.raises(DeletedValueError, match=r"\['x'\] cannot be used: the part of replica"):
            run({"x": batch})
    results = many.experimental_local_results(run({"x": batch_of(many)}))
    assert [float(x) for x in results] == [2.0] * many.num_replicas_in_sync


@pytest.mark.parametrize("num_calls", [0, 1, 4])
def test_a_mirrored_value_without_its_last_copy_is_refused_by_name(many, execute, end, num_calls):
    def total():
        return rx.get_replica_context().all_reduce("SUM", jnp.ones(2))

    mirrored = execute(many, total)
    run = execute.prepare(many, lambda x: x.sum())
    for _ in range(num_calls):
        run(mirrored)
    end(many.experimental_local_results(mirrored)[-1])
    with pytest.raises(DeletedValueError, match=r"\[0\] cannot be used: the part of replica"):
        run(mirrored)


@pytest.mark.parametrize("num_calls", [0, 1, 4])
def test_a_component_that_the_user_gave_and_took_back_is_refused_by_name(many, execute, num_calls):
    devices = many.extended.mesh.devices
    parts = [jax.device_put(np.ones(2, np.float32), device) for device in devices]
    value = many.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )
    run = execute.prepare(many, lambda x: x.sum())
    for _ in range(num_calls):
        run(value)
    parts[-1].delete()
    with pytest.raises(DeletedValueError, match=r"\[0\] cannot be used: the part of replica"):
        run(value)


@pytest.mark.parametrize("rows_less", [0, 1], ids=["even", "uneven"])
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_reduce_and_gather_refuse_a_value_without_its_last_part(many, end, rows_less, where):
    batch = batch_of(many, rows_less)
    end(many.experimental_local_results(batch)[-1])
    for use in (lambda: many.reduce("SUM", batch, axis=0), lambda: many.gather(batch, axis=0)):
        with pytest.raises(DeletedValueError, match=r"the part of replica .* is gone"):
            (use if where == "outside" else rx.function(use))()


@pytest.mark.parametrize("num_calls", [0, 1, 4])
@pytest.mark.parametrize("which", ["read", "written"])
def test_a_variable_without_its_last_copy_is_refused_by_name(
    distributed, execute, end, num_calls, which
):
    strategy = distributed
    with strategy.scope():
        variables = {
            "read": rx.Variable(2.0, name="rate"),
            "written": rx.Variable(0.0, name="total", aggregation=SUM),
        }

    def step(x):
        variables["written"].assign_add(x.sum() * variables["read"])

    run, batch = execute.prepare(strategy, step), batch_of(strategy)
    for _ in range(num_calls):
        run(batch)
    variable = variables[which]
    end(strategy.experimental_local_results(variable)[-1].value)
    for _ in range(2):
        with pytest.raises(LostVariableError, match=f"'{variable.name}' cannot be used.*deleted"):
            run(batch)
    variables["written"].assign(0.0)
    variables["read"].assign(3.0)
    run(batch)
    assert float(variables["written"]) == 6.0 * strategy.num_replicas_in_sync


def test_a_checkpoint_of_a_variable_without_its_last_copy_is_refused_by_name(many, tmp_path):
    with many.scope():
        variable = rx.Variable(1.0, name="weights")
    many.experimental_local_results(variable)[-1].value.delete()
    with pytest.raises(LostVariableError, match="'weights' cannot be used"):
        rx.Checkpoint(variable=variable).save(str(tmp_path / "saved"))


def test_results_that_were_deleted_in_part_stop_no_later_step(many):
    step, batch = rx.function(lambda x: x * 2), batch_of(many)
    for _ in range(40):
        result = many.run(step, args=(batch,))
        many.experimental_local_results(result)[-1].delete()
    results = many.experimental_local_results(many.run(step, args=(batch,)))
    assert [x.tolist() for x in results] == [[2.0, 2.0]] * many.num_replicas_in_sync


def test_an_array_over_several_devices_without_its_last_part_is_refused_by_name(many):
    mesh = many.extended.mesh
    step = rx.function(lambda x: many.run(lambda x: x.sum(), args=(x,)))

    def spread():
        return jax.device_put(np.ones(2 * many.num_replicas_in_sync), mesh.per_replica)

    array = spread()
    for _ in range(4):
        step(array)
    array.addressable_shards[-1].data.delete()
    with pytest.raises(DeletedValueError, match=r"the argument at \[0\]\[0\] cannot be used"):
        step(array)
    step(spread())
