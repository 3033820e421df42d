"""Records of a file as columns: any JSON, torn lines, many records."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.history import Columns
from mpidl.history.lines import Kind, Lines

#: Any objects of JSON.
OBJECT = Kind("object", msgspec.json.Decoder(dict[str, Any]), list[Any])

RECORD = {"time": 1.5, "samples": 64, "staleness": {"mean": 0.5, "max": 2}, "staleness_histogram": [3, 1], "rate": None}


def lines(*records):
    return b"".join(json.dumps(each).encode() + b"\n" for each in records)


def columns_of(content):
    """Return the columns of a file with this content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return Columns(Lines(Path(file.name), OBJECT))


def same(found, expected):
    np.testing.assert_array_equal(found, np.array(expected))


def test_figures_are_columns():
    columns = columns_of(lines(RECORD, RECORD | {"time": 2, "staleness_histogram": [3, 1, 4], "rate": 0.1}))
    assert columns.rows == 2
    assert list(columns) == ["time", "samples", "staleness.mean", "staleness.max", "staleness_histogram", "rate"]
    same(columns["time"], [1.5, 2.0])
    same(columns["staleness.max"], [2.0, 2.0])
    same(columns["staleness_histogram"], [[3.0, 1.0, 0.0], [3.0, 1.0, 4.0]])
    same(columns["rate"], [math.nan, 0.1])
    assert {values.dtype for values in columns.values()} == {np.dtype(float)}


def test_figures_that_only_some_records_have():
    columns = columns_of(lines({"a": 1}, {"b": {"c": 2}, "list": [1]}, {"a": 3, "b": None, "text": "x"}))
    same(columns["a"], [1, math.nan, 3])
    same(columns["b.c"], [math.nan, 2, math.nan])
    same(columns["list"], [[0], [1], [0]])
    assert columns["text"].tolist() == [None, None, "x"]
    assert "b" not in columns


def test_values_of_several_kinds_are_objects():
    columns = columns_of(lines({"x": 1, "big": 10**400}, {"x": "text", "big": 1}, {"x": {"y": 1}, "big": 2}))
    assert columns["x"].tolist() == [1, "text", None]
    same(columns["x.y"], [math.nan, math.nan, 1])
    assert columns["big"].shape == (3,)


def test_records_with_keys_in_another_order():
    columns = columns_of(lines({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 30, "c": 20}, "a": 10}))
    assert {name: values.tolist() for name, values in columns.items()} == {
        "a": [1, 10], "b.c": [2, 20], "b.d": [3, 30],
    }  # fmt: skip


@pytest.mark.parametrize(
    "torn", [b'{"a": 7', b"\0\0\0\n", b'"text"\n', b"[1]\n", b'{"a"\n', b"\xff\n", b"[" * 9999 + b"\n"]
)
def test_lines_that_are_no_records_are_left_out(torn):
    same(columns_of(lines({"a": 1}) + torn)["a"], [1])
    if torn.endswith(b"\n"):
        same(columns_of(torn + lines({"a": 1}) + torn + lines({"a": 2}))["a"], [1, 2])


def test_no_records(tmp_path):
    for columns in (columns_of(b""), columns_of(b'{"a"'), Columns(Lines(tmp_path / "none", OBJECT))):
        assert (columns.rows, len(columns), list(columns.to_pandas())) == (0, 0, [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=2), json_values, max_size=4), max_size=6))
def test_any_records_become_columns_of_equal_lengths(records):
    columns = columns_of(lines(*records))
    assert columns.rows == len(records)
    assert {len(values) for values in columns.values()} <= {len(records)}
    for name in {name for record in records for name in record if "." not in name}:
        for number, record in enumerate(records):
            if isinstance(value := record.get(name), int | float) and not isinstance(value, bool):
                assert columns[name][number] == pytest.approx(value)


def test_blocks_of_lines_make_no_difference():
    records = [{"n": n, **({"odd": {"n": n}} if n % 2 else {})} for n in range(12_000)]
    columns = columns_of(lines(*records))
    same(columns["n"], np.arange(12_000))
    same(columns["odd.n"][1::2], np.arange(1, 12_000, 2))
    assert np.isnan(columns["odd.n"][::2]).all()


def test_blocks_with_values_of_other_kinds(monkeypatch):
    """With a block for each line, columns are as with one block for all, also of figures that begin later."""
    records = [
        {"list": None, "text": 1, "late": None, "both": [1]},
        {"list": [1, 2], "text": "x"},
        {"list": [3], "text": None, "late": [], "both": 2.5, "new": 4, "of": {"new": [5]}},
        {"list": None, "late": [5, 6, 7], "both": None, "new": None},
    ]
    monkeypatch.setattr("mpidl.history.lines.BLOCK", 1)
    columns = columns_of(lines(*records))
    same(columns["list"], [[0, 0], [1, 2], [3, 0], [0, 0]])
    same(columns["late"], [[0, 0, 0], [0, 0, 0], [0, 0, 0], [5, 6, 7]])
    same(columns["new"], [math.nan, math.nan, 4, math.nan])
    same(columns["of.new"], [[0], [0], [5], [0]])
    assert columns["text"].tolist() == [1, "x", None, None]
    assert columns["both"].tolist() == [[1], None, 2.5, None]


def test_a_long_run_is_read_in_a_moment(calls):
    content = lines(RECORD | dict.fromkeys("abcdefghijklmnop", 1.25)) * 20_000
    assert calls(lambda: columns_of(content)) < 20_000, "less than one for each record"


def test_a_frame_of_pandas():
    frame = columns_of(lines(RECORD, RECORD)).to_pandas()
    assert frame["staleness.mean"].tolist() == [0.5, 0.5]
    assert frame["staleness_histogram"][1].tolist() == [3, 1]
