"""Gradients of rows that a replica hasn't pushed, in checkpoints: each stays with its id, on any number of servers."""

import numpy as np
import pytest

from mpidl.sparse import unpushed
from mpidl.tables.distinct import distinct
from mpidl.tables.lookups import Lookup, TableSpec, gathered

TABLES = [TableSpec("words", 2), TableSpec("users", 1)]


def lookups(ids, servers):
    """Return a lookup of ids with gradients that name them."""
    noted, found = [], distinct(np.array(ids), servers)
    look = Lookup(np.zeros((found.ids.size, 2)), found, noted)
    look.gradient = np.stack([found.ids, 10.0 * found.ids], 1)
    return noted


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_gradients_come_back_to_their_ids(servers):
    ids = np.random.default_rng(0).permutation(40)
    vectors = unpushed.saved(TABLES, [lookups(ids, 3), []])
    assert list(vectors) == ["unpushed/words/ids", "unpushed/words/gradients"]
    restored = [[], []]
    unpushed.restored(TABLES, vectors, servers, restored)
    found, gradients = gathered(restored[0])
    assert sorted(found.ids) == list(range(40))
    np.testing.assert_array_equal(gradients, np.stack([found.ids, 10.0 * found.ids], 1))
    for own, expected in zip(found.parts, distinct(ids, servers).parts, strict=True):
        assert own == expected
    assert restored[1] == []
