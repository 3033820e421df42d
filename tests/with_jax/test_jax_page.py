"""What the manual says of JAX runs as it stands there."""

import doctest
from pathlib import Path

import pytest

pytest.importorskip("jax")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.rst"


def test_examples_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10
    assert not result.failed
