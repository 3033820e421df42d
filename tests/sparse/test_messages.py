"""Rows of tables arrive as they were sent, in messages of bounded size, also in one for several workers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl import Sgd
from mpidl.sparse.merging import MergedRows
from mpidl.sparse.messages import (
    RowEncoding,
    RowEncodings,
    TableRows,
    answer_bytes,
    grouped,
    message_bytes,
    pack,
    plain,
    unpack,
)
from mpidl.sparse.rows import ReplicaRows
from mpidl.sparse.server_tables import ServerTables
from mpidl.tables.distinct import distinct, owner
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table
from mpidl.wire import parse

DIMENSIONS = [1, 3, 16]
SIZES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=6)


def parts_of(sizes, dtype):
    random, parts = np.random.default_rng(0), []
    for table, count in sizes:
        ids, values = random.integers(-(2**63), 2**63 - 1, count), random.normal(size=(count, DIMENSIONS[table]))
        parts.append(TableRows(table, ids, values.astype(dtype)))
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
    parts, encoding = parts_of(sizes, dtype), RowEncoding(np.dtype(dtype))
    messages = [pack(group, encoding) for group in grouped(parts, most)]
    assert all(0 < message.size <= most and message.size % 8 == 0 for message in messages)
    assert joined([part for message in messages for part in unpack(message, DIMENSIONS, encoding)]) == joined(parts)


@given(sizes=SIZES, dtype=st.sampled_from(["float32", "float64"]))
def test_the_answer_to_any_request_fits_where_its_ids_fit_with_values(sizes, dtype):
    parts, encoding = parts_of(sizes, dtype), RowEncoding(np.dtype(dtype))
    for group in grouped(parts, 1024):
        request = pack(group, None)
        assert request.size == message_bytes(group, None)
        assert answer_bytes(group, encoding) <= 1024
        assert [part.ids.tolist() for part in unpack(request, DIMENSIONS, None)] == [
            each.ids.tolist() for each in group
        ]


@pytest.mark.parametrize(("wire", "error"), [("bf16", 0.01), ("int8", 0.03)])
def test_encoded_values_are_close_and_smaller(wire, error):
    (part,), encoding = parts_of([(2, 40)], "float32"), RowEncoding(np.dtype(np.float32), parse(wire))
    message = pack([part], encoding)
    (found,) = unpack(message, DIMENSIONS, encoding)
    assert message.size < 0.7 * message_bytes([part], RowEncoding(np.dtype(np.float32)))
    assert np.array_equal(found.ids, part.ids)
    assert 0 < abs(found.values - part.values).max() < error
    assert np.array_equal(found.values, encoding.carried(part.values))


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_unpushed_gradients_come_back_to_their_ids_on_any_number_of_servers(servers):
    ids, encodings = np.random.default_rng(0).permutation(40), plain(np.dtype(np.float64))
    tables = [TableSpec("words", 2), TableSpec("users", 1)]
    before, after = ReplicaRows(tables, 3, encodings), ReplicaRows(tables, servers, encodings)
    lookup = before.request(0, ids).lookup
    lookup.gradient = np.stack([lookup.ids, 10.0 * lookup.ids], 1)
    assert list(before.vectors()) == ["unpushed/words/ids", "unpushed/words/gradients"]
    after.load(before.vectors())
    for own, part in zip(after.take_gradients(), distinct(ids, servers).parts, strict=True):
        ((table, found, gradients),) = own
        assert (table, found.size) == (0, part.stop - part.start)
        assert np.all(owner(found, servers) == owner(found[:1], servers))
        np.testing.assert_array_equal(gradients, np.stack([found, 10.0 * found], 1))
    assert sorted(lookup.ids) == list(range(40))
    assert after.vectors() == {}


SPECS = [TableSpec("words", 3), TableSpec("users", 5, scale=0.5)]
DTYPE, MOST = np.dtype(np.float32), 400


def encoding(wire):
    return RowEncoding(DTYPE, None if wire is None else parse(wire))


def parts(seed, ids=40):
    """Return parts of both tables with distinct ids, and random values."""
    random = np.random.default_rng(seed)
    found = [random.choice(60, ids, replace=False) for _ in SPECS]
    return [
        TableRows(table, own, random.normal(size=(ids, spec.dimension)).astype(DTYPE))
        for table, (spec, own) in enumerate(zip(SPECS, found, strict=True))
    ]


def sums(given):
    found = {}
    for table, ids, values in given:
        for id, row in zip(ids.tolist(), values, strict=True):
            found[table, id] = found.get((table, id), 0) + row
    return found


@pytest.mark.parametrize("wire", [None, "bf16"])
@pytest.mark.parametrize("pushes", [1, 3])
def test_gradients_of_equal_ids_are_summed(wire, pushes):
    given = [parts(seed) for seed in range(pushes)]
    merged = MergedRows(SPECS, RowEncodings(encoding(wire), encoding(None)), MOST)
    messages = [pack([part], merged.plain) for own in given for part in own]
    found = merged.sums(messages)
    assert all(message.size <= MOST for message in found)
    dimensions = [spec.dimension for spec in SPECS]
    carried = [part for message in found for part in unpack(message, dimensions, encoding(wire))]
    expected = sums(part for own in given for part in own)
    assert sum(part.ids.size for part in carried) == len(expected)
    for key, row in sums(carried).items():
        np.testing.assert_allclose(row, expected[key], rtol=1e-6 if wire is None else 1e-2, atol=1e-6)


@pytest.mark.parametrize("wire", [None, "bf16"])
def test_equal_ids_are_wanted_once_and_each_worker_gets_its_rows(wire):
    encodings = RowEncodings(encoding(None), encoding(wire))
    tables = [Table(spec, Sgd(1.0), capacity=1000, dtype=DTYPE) for spec in SPECS]
    for table, part in zip(tables, parts(0), strict=True):
        table.update(part.ids, part.values, 1)
    server, alone = ServerTables(tables, Sgd(1.0), encodings), ServerTables(tables, Sgd(1.0), plain(DTYPE))
    # Requests have a part of one table, and parts of both.
    requests = [pack(own, None) for own in (parts(1)[:1], parts(2), parts(1)[1:])]
    together = MergedRows(SPECS, encodings, MOST).together(requests)
    for question in together.questions:
        answer = np.zeros(MOST, np.uint8)
        server.answer(question.message, answer)
        for target in question.targets:
            target[...], answer = answer[: target.nbytes], answer[-(-target.nbytes // 8) * 8 :]
    assert sum(question.message.size for question in together.questions) < sum(each.size for each in requests)
    together.arrived()
    for number, request in enumerate(requests):
        found, expected = np.zeros((2, 2000), np.uint8)
        together.answer(number, found)
        alone.answer(request, expected)
        assert expected.any()
        tolerance = 0 if wire is None else 1e-2
        np.testing.assert_allclose(found.view(DTYPE), expected.view(DTYPE), rtol=tolerance, atol=tolerance)
