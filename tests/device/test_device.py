"""Where a worker computes, and the errors if it can't."""

import os
import sys

import numpy as np
import pytest

import fake_cupy
from mpidl.device import choose
from mpidl.errors import UsageError

MISSING = "CuPy isn't installed: pip install 'mpidl[cuda12]', or [cuda13] for newer drivers"
NO_DEVICE = "no GPU that CuPy can use: cudaErrorNoDevice: no CUDA-capable device is detected"


@pytest.fixture(params=["GPU", "no GPU"])
def hint(request, monkeypatch):
    """What the reason for the CPU becomes on a node with a GPU, and on one without."""
    monkeypatch.setattr("mpidl.device.GPU_FILES", (os.devnull if request.param == "GPU" else "/dev/absent",))
    return lambda reason: reason if request.param == "GPU" else ""


def install(monkeypatch, cupy):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


def test_workers_of_a_node_take_its_gpus_in_turn(monkeypatch):
    cupy = install(monkeypatch, fake_cupy.fake(devices=2))
    places = [choose(kind, number) for number, kind in enumerate(["cuda", "auto", "cuda", "auto"])]
    assert cupy.cuda.used == [0, 1, 0, 1]
    assert [str(place) for place in places] == ["Fake 0", "Fake 1", "Fake 0", "Fake 1"]
    assert all(place.xp is cupy for place in places)


def test_the_cpu_needs_no_cupy(monkeypatch):
    cupy = install(monkeypatch, fake_cupy.fake())
    place = choose("cpu", 0)
    assert place.xp is np
    assert str(place) == "the CPU"
    assert cupy.cuda.used == []


def test_without_cupy(monkeypatch, hint):
    install(monkeypatch, None)
    assert choose("auto", 0) == (np, "the CPU", hint(MISSING))
    assert str(choose("auto", 0)) == ("the CPU" if not hint("x") else f"the CPU ({MISSING})")
    with pytest.raises(UsageError) as error:
        choose("cuda", 0)
    assert str(error.value) == f"device.kind: 'cuda', but {MISSING}"


def test_without_a_gpu(monkeypatch, hint):
    install(monkeypatch, fake_cupy.fake(devices=0))
    assert choose("auto", 0) == (np, "the CPU", hint(NO_DEVICE))
    with pytest.raises(UsageError) as error:
        choose("cuda", 0)
    assert str(error.value) == f"device.kind: 'cuda', but {NO_DEVICE}"


def test_a_gpu_without_its_libraries(monkeypatch):
    cupy = install(monkeypatch, fake_cupy.fake())

    def matmul(*_):
        raise ImportError("libcublas.so.12: cannot open\nshared object file")

    cupy.matmul = matmul
    with pytest.raises(UsageError, match=r"can use: libcublas.so.12: cannot open shared object file$"):
        choose("cuda", 0)


def test_a_broken_cupy(monkeypatch, hint):
    class Broken:
        def find_spec(self, name, path, target=None):
            if name == "cupy":
                raise ImportError("\n====\nFailed to import CuPy.\n")

    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert choose("auto", 0).reason == hint("CuPy can't be imported: ==== Failed to import CuPy.")
