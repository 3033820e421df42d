import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cut_layouts import cut_layouts, in_layout, shapes_by_name, tensors_of
from mpidl.parameters import moves, shards


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
