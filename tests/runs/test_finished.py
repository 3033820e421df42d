"""Whether a run that is to be resumed is finished: its summary says so."""

import shutil
from pathlib import Path

import msgspec
import pytest

from mpidl.config import load
from mpidl.runs.start import finished

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"
DONE = {"algorithm": "downpour", "epochs": 30.0, "interrupted": False}


@pytest.mark.parametrize(
    ("summary", "is_finished"),
    [
        (msgspec.json.encode(DONE), True),
        (msgspec.json.encode(DONE | {"interrupted": True}), False),
        (msgspec.json.encode(DONE | {"algorithm": "sync"}), False),
        (msgspec.json.encode(DONE)[:-9], False),
        (b"[1]", False),
        (b"", False),
    ],
)
def test_by_its_summary(tmp_path, summary, is_finished):
    shutil.copy(DIGITS, tmp_path / "config.toml")
    (tmp_path / "summary.json").write_bytes(summary)
    assert finished(load(DIGITS), tmp_path) == (DONE if is_finished else None)


def test_without_a_summary(tmp_path):
    shutil.copy(DIGITS, tmp_path / "config.toml")
    assert finished(load(DIGITS), tmp_path) is None
