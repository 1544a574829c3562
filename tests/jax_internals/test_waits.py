"""Every way by which Python waits for an array is seen, and nothing stays behind."""

import jax
import pytest

from replicax.jax_internals import waits
from replicax.jax_internals.arrays import ConcreteArray

READS = {
    "float": float,
    "int": int,
    "bool": bool,
    "str": str,
    "format": "{:.1f}".format,
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "device_get": jax.device_get,
    "block_until_ready": lambda x: x.block_until_ready(),
    "jax.block_until_ready": jax.block_until_ready,
    "jax.block_until_ready of many": lambda x: jax.block_until_ready([x, x]),
}


@pytest.fixture(params=[1, 2], ids=["one device", "two devices"])
def array(request):
    mesh = jax.make_mesh((request.param,), ("x",), devices=jax.devices()[: request.param])
    return jax.device_put(3.0, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_wait_is_entered_and_left(read, array):
    seen = []
    with waits.waits_seen(lambda: seen.append("enter") or "before", seen.append):
        read(array)
    assert seen[:1] == ["enter"]
    assert seen.count("enter") == seen.count("before") > 0


def test_nothing_is_left_where_nothing_was_entered(array):
    left = []
    with waits.waits_seen(lambda: None, left.append):
        assert float(array) == 3.0
    assert left == []


def test_an_error_of_a_wait_passes_through(array):
    left = []
    array.delete()
    with (
        waits.waits_seen(lambda: "before", left.append),
        pytest.raises(RuntimeError, match="Array has been deleted"),
    ):
        float(array)
    assert left == ["before"]


def test_afterwards_the_methods_are_those_of_jax():
    before = dict(vars(ConcreteArray))
    with pytest.raises(ZeroDivisionError, match="division"), waits.waits_seen(list, list):
        assert dict(vars(ConcreteArray)) != before
        1 / 0  # noqa: B018
    assert dict(vars(ConcreteArray)) == before
