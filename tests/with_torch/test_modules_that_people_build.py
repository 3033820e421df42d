"""Modules of many kinds: trained as by a plain loop, and afterwards by PyTorch as if nothing had been."""

import pytest

torch = pytest.importorskip("torch")

from zoo import ZOO, differences  # noqa: E402


@pytest.mark.parametrize("name", ZOO)
def test_a_module_equals_a_plain_loop_and_trains_on(tmp_path, name):
    assert differences(name, tmp_path) == []
