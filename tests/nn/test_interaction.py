"""Interaction: which products it has, in which order, and shapes that have none."""

import numpy as np
import pytest

from layer_cases import Alone
from mpidl.errors import UsageError
from mpidl.nn import Interaction


def test_products_of_all_pairs_follow_the_single_vectors():
    alone = Alone(Interaction(), [(3, 2), (2,)], samples=1)
    alone.inputs[0][...], alone.inputs[1][...] = [[[1, 2], [3, 4], [5, 6]]], [[7, 8]]
    # (3, 4).(1, 2); (5, 6).(1, 2), (5, 6).(3, 4); (7, 8).(1, 2), (7, 8).(3, 4), (7, 8).(5, 6)
    assert alone.forward().tolist() == [[7, 8, 11, 17, 39, 23, 53, 83]]


def test_it_is_dlrms():
    """As in facebookresearch/dlrm: the dense vector, then the strict lower triangle of all products, row by row."""
    alone = Alone(Interaction(), [(4,), (5, 4)], samples=7)
    vectors = np.concatenate([alone.inputs[0][:, None], alone.inputs[1]], axis=1)
    products = np.einsum("nik,njk->nij", vectors, vectors)
    rows = [i for i in range(6) for _ in range(i)]
    columns = [j for i in range(6) for j in range(i)]
    expected = np.concatenate([alone.inputs[0], products[:, rows, columns]], axis=1)
    np.testing.assert_allclose(alone.forward(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3,), (4, 2)], "inputs: shapes (3,), (4, 2), expected (d,) or (f, d) of one d"),
        ([(3,), (4, 2, 3)], "inputs: shapes (3,), (4, 2, 3), expected (d,) or (f, d) of one d"),
        ([()], "inputs: shapes (), expected (d,) or (f, d) of one d"),
        ([(3,)], "inputs: shape (3,) has one vector, expected at least two"),
    ],
)
def test_shapes_without_products_are_one_line(shapes, message):
    with pytest.raises(UsageError) as error:
        Interaction().output_shape(*shapes)
    assert str(error.value) == message
