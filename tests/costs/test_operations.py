"""What a traced program makes a machine execute, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.costs.operations import FUNCTION_WEIGHT, read_operations

A = np.ones((8, 32), np.float32)
B = np.ones((32, 4), np.float32)
CUBE = np.ones((2, 3, 4), np.float32)


def of(fn, *args):
    return read_operations(jax.make_jaxpr(fn)(*args))


def flops(found):
    return sum(product.flops * product.count for product in found.products)


def test_a_product_has_its_operations_its_bytes_and_its_result():
    (product,) = of(lambda a, b: a @ b, A, B).products
    assert (product.flops, product.count, product.dtype) == (2 * 8 * 32 * 4, 1, "float32")
    assert (product.num_bytes, product.result_bytes) == (4 * (8 * 32 + 32 * 4 + 8 * 4), 4 * 8 * 4)


def test_a_product_of_many_small_ones_counts_as_many():
    (product,) = of(
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b), CUBE, np.ones((2, 4, 5))
    ).products
    assert (product.flops, product.count) == (2 * 3 * 4 * 5, 2)


def test_products_that_are_alike_are_one():
    (product,) = of(lambda a, b: (a @ b) + (2 * a) @ b, A, B).products
    assert product.count == 2


def test_a_convolution_is_a_product():
    image, kernel = np.ones((1, 8, 8, 3), np.float32), np.ones((3, 3, 3, 16), np.float32)
    dims = ("NHWC", "HWIO", "NHWC")
    found = of(
        lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims),
        image,
        kernel,
    )
    assert flops(found) == 2 * 8 * 8 * 16 * 3 * 3 * 3


@pytest.mark.parametrize(
    ("fn", "elements", "moved", "strided"),
    [
        (lambda x: x + 1.0, 24, 0, 0),
        (jnp.tanh, 24 * FUNCTION_WEIGHT, 0, 0),
        (lambda x: x.reshape(4, 6), 0, 0, 0),
        (lambda x: x.sum(0), 0, 96 + 48, 0),
        (lambda x: x[:, 1:], 0, 96 + 64, 0),
        (lambda x: x.transpose(2, 0, 1), 0, 0, 2 * 96),
        (lambda x: x.reshape(4, 6).T, 0, 0, 0),  # a part of the product that uses it
    ],
)
def test_other_operations_compute_move_or_reorder(fn, elements, moved, strided):
    found = of(fn, CUBE)
    assert (found.elements, found.moved_bytes, found.strided_bytes) == (elements, moved, strided)


def test_operands_whose_batch_dims_are_not_the_first_are_reordered():
    found = of(lambda q, k: jnp.einsum("thd,shd->hts", q, k), CUBE, CUBE)
    assert found.strided_bytes >= 2 * 2 * 96


def test_a_scan_counts_every_round_and_a_while_loop_one():
    def body(x, _):
        return x + 1.0, None

    assert of(lambda x: jax.lax.scan(body, x, length=7)[0], CUBE).elements == 7 * 24
    loop = of(lambda x: jax.lax.while_loop(lambda x: x[0, 0, 0] < 9, lambda x: x + 1.0, x), CUBE)
    assert loop.elements == 24


def test_of_two_branches_the_longer_one_counts():
    found = of(
        lambda p, a, b: jax.lax.cond(p, lambda: (a @ b).sum(), lambda: a[0, 0] * 2.0), True, A, B
    )
    assert flops(found) == 2 * 8 * 32 * 4


def test_a_nested_function_is_looked_into():
    assert flops(of(jax.jit(lambda a, b: a @ b), A, B)) == 2 * 8 * 32 * 4
