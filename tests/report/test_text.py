"""Numbers and tables as plain text."""

import pytest

from mpidl.report.text import duration, quantity, size, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (167_108_608, "167 MB"),
        (999_499_999, "999 MB"),
        (6.8e9, "6.8 GB"),
        (1e15, "1 PB"),
        (2.5e19, "2.5e+04 PB"),
    ],
)
def test_quantities(value, text):
    assert quantity(value, "B") == text


def test_a_quantity_without_unit():
    assert (quantity(12, ""), quantity(83.5e6, "")) == ("12", "83.5 M")


def test_sizes():
    assert size(41_777_152, 167_108_608) == "41,777,152 parameters (167 MB)"
    assert size(1, 4) == "1 parameter (4 B)"


def test_tables():
    assert table([["a", "bb", "c"], ["aaa", "", "22"]], left=2) == ["a    bb   c", "aaa      22"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (75.4, "75.4 s"),
        (300, "5 min"),
        (7000, "117 min"),
        (7200, "2 h"),
        (1e6, "278 h"),
        (1.0, "1 s"),
        (0.01234, "12.3 ms"),
        (2e-6, "2 us"),
        (3.45e-8, "34.5 ns"),
        (0.0, "0 ns"),
    ],
)
def test_a_duration(seconds, text):
    assert duration(seconds) == text
