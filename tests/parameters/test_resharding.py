import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cut_layouts import cut_layouts, in_layout, shapes_by_name, tensors_of
from mpidl.errors import MpidlError
from mpidl.parameters import Range, copies, moves, shards


@given(st.data())
def test_any_number_of_servers_to_any_other(data):
    size = data.draw(st.integers(1, 200))
    old = shards(size, data.draw(st.integers(1, min(size, 9))))
    new = shards(size, data.draw(st.integers(1, min(size, 9))))
    old = data.draw(st.permutations(old))
    vector = np.arange(size)
    for shard in new:
        assembled = np.full(shard.size, -1)
        for source, source_range, target_range in copies(old, shard):
            part = vector[slice(*old[source])][slice(*source_range)]
            assembled[slice(*target_range)] = part
        assert assembled.tolist() == list(range(*shard))


def test_copies_are_in_order_and_none_is_empty():
    found = copies([Range(0, 4), Range(4, 7), Range(7, 7), Range(7, 10)], Range(4, 9))
    assert found == [(1, Range(0, 3), Range(0, 3)), (3, Range(0, 2), Range(3, 5))]
    assert copies([Range(0, 4)], Range(2, 2)) == []


@pytest.mark.parametrize(
    ("old", "missing"),
    [
        ([], 2),
        ([Range(0, 4)], 4),
        ([Range(3, 9)], 2),
        ([Range(0, 4), Range(5, 9)], 4),
        ([Range(0, 5), Range(4, 9)], 5),
    ],
)
def test_old_shards_that_do_not_cover_the_new_one(old, missing):
    with pytest.raises(MpidlError, match=f"element {missing} exactly once"):
        copies(old, Range(2, 9))


@given(st.data())
def test_any_layout_to_any_other(data):
    shapes = data.draw(shapes_by_name)
    old, new = (data.draw(cut_layouts(shapes)) for _ in range(2))
    tensors = tensors_of(shapes)
    source, target = (in_layout(tensors, layout) for layout in (old, new))
    held = shards(old.size, data.draw(st.integers(1, min(old.size, 5))))
    for wanted in shards(new.size, data.draw(st.integers(1, min(new.size, 5)))):
        assembled = np.full(wanted.size, -1.0)
        count = 0
        for shard in held:
            for move in moves(old, shard, new, wanted):
                move.copy(source[slice(*shard)], assembled)
                count += move.box.size
        assert count == wanted.size
        assert assembled.tolist() == target[slice(*wanted)].tolist()
