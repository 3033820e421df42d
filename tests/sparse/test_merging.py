"""Messages about rows that stand for those of several workers."""

import numpy as np
import pytest

from mpidl import Sgd
from mpidl.sparse.merging import MergedRows
from mpidl.sparse.messages import Form, Forms, Part, pack, plain, unpack
from mpidl.sparse.server_tables import ServerTables
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table
from mpidl.wire import parse

SPECS = [TableSpec("words", 3), TableSpec("users", 5, scale=0.5)]
DTYPE, MOST = np.dtype(np.float32), 400


def form(wire):
    return Form(DTYPE, None if wire is None else parse(wire))


def parts(seed, ids=40):
    """Return parts of both tables with distinct ids, and random values."""
    random = np.random.default_rng(seed)
    found = [random.choice(60, ids, replace=False) for _ in SPECS]
    return [
        Part(table, own, random.normal(size=(ids, spec.dimension)).astype(DTYPE))
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
    merged = MergedRows(SPECS, Forms(form(wire), form(None)), MOST)
    messages = [pack([part], merged.plain) for own in given for part in own]
    found = merged.sums(messages)
    assert all(message.size <= MOST for message in found)
    dimensions = [spec.dimension for spec in SPECS]
    carried = [part for message in found for part in unpack(message, dimensions, form(wire))]
    expected = sums(part for own in given for part in own)
    assert sum(part.ids.size for part in carried) == len(expected)
    for key, row in sums(carried).items():
        np.testing.assert_allclose(row, expected[key], rtol=1e-6 if wire is None else 1e-2, atol=1e-6)


@pytest.mark.parametrize("wire", [None, "bf16"])
def test_equal_ids_are_wanted_once_and_each_worker_gets_its_rows(wire):
    forms = Forms(form(None), form(wire))
    tables = [Table(spec, Sgd(1.0), capacity=1000, dtype=DTYPE) for spec in SPECS]
    for table, part in zip(tables, parts(0), strict=True):
        table.update(part.ids, part.values, 1)
    server, alone = ServerTables(tables, Sgd(1.0), forms), ServerTables(tables, Sgd(1.0), plain(DTYPE))
    # Requests have a part of one table, and parts of both.
    requests = [pack(own, None) for own in (parts(1)[:1], parts(2), parts(1)[1:])]
    together = MergedRows(SPECS, forms, MOST).together(requests)
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
