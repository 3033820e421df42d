"""Messages with any parts of tables arrive as they were sent, and have at most the bytes that there is room for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.sparse.messages import Form, Part, answer_bytes, grouped, message_bytes, pack, unpack
from mpidl.wire import parse

DIMENSIONS = [1, 3, 16]
SIZES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=6)


def parts_of(sizes, dtype):
    random, parts = np.random.default_rng(0), []
    for table, count in sizes:
        ids, values = random.integers(-(2**63), 2**63 - 1, count), random.normal(size=(count, DIMENSIONS[table]))
        parts.append(Part(table, ids, values.astype(dtype)))
    return parts


def joined(parts):
    """Return the ids and values of each table, one part after the other."""
    found = [([], []) for _ in DIMENSIONS]
    for table, ids, values in parts:
        found[table][0].extend(ids.tolist())
        found[table][1].extend(values.tolist())
    return found


@given(
    sizes=SIZES, most=st.integers(20, 80).map(lambda words: 8 * words), dtype=st.sampled_from(["float32", "float64"])
)
def test_any_parts_arrive_in_messages_of_bounded_size(sizes, most, dtype):
    parts, form = parts_of(sizes, dtype), Form(np.dtype(dtype))
    messages = [pack(group, form) for group in grouped(parts, most)]
    assert all(0 < message.size <= most and message.size % 8 == 0 for message in messages)
    assert joined([part for message in messages for part in unpack(message, DIMENSIONS, form)]) == joined(parts)


@given(sizes=SIZES, dtype=st.sampled_from(["float32", "float64"]))
def test_the_answer_to_any_request_fits_where_its_ids_fit_with_values(sizes, dtype):
    parts, form = parts_of(sizes, dtype), Form(np.dtype(dtype))
    for group in grouped(parts, 1024):
        request = pack(group, None)
        assert request.size == message_bytes(group, None)
        assert answer_bytes(group, form) <= 1024
        assert [part.ids.tolist() for part in unpack(request, DIMENSIONS, None)] == [
            each.ids.tolist() for each in group
        ]


@pytest.mark.parametrize(("wire", "error"), [("bf16", 0.01), ("int8", 0.03)])
def test_encoded_values_are_close_and_smaller(wire, error):
    (part,), form = parts_of([(2, 40)], "float32"), Form(np.dtype(np.float32), parse(wire))
    message = pack([part], form)
    (found,) = unpack(message, DIMENSIONS, form)
    assert message.size < 0.7 * message_bytes([part], Form(np.dtype(np.float32)))
    assert np.array_equal(found.ids, part.ids)
    assert 0 < abs(found.values - part.values).max() < error
    assert np.array_equal(found.values, form.carried(part.values))
