"""What a replica has computed and not pushed, in parts of portions."""

from hypothesis import given
from hypothesis import strategies as st

from mpidl.engines.progress import divided

PARTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=5).map(
    lambda sizes: [[portion, start, start + size] for portion, (start, size) in enumerate(sizes)]
)


def batches(parts):
    return [(portion, batch) for portion, start, stop in parts for batch in range(start, stop)]


@given(PARTS, st.data())
def test_the_last_batches_of_parts(parts, data):
    whole = batches(parts)
    count = data.draw(st.integers(0, len(whole)))
    kept, last = divided(parts, count)
    assert batches(kept) + batches(last) == whole
    assert len(batches(last)) == count
    assert all(start < stop for _, start, stop in [*kept, *last])
