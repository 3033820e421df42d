"""Trying device pointers in a process that may crash; NumPy stands in for CuPy."""

import pytest

from mpidl.doctor import cuda
from mpidl.doctor.examination import Verdict

DEVICE = """
from types import SimpleNamespace
from numpy import *
runtime = SimpleNamespace(getDeviceProperties=lambda number: {"name": b"Tensor Tron"})
stream = SimpleNamespace(synchronize=lambda: None)
cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream)
"""


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    """Makes a CuPy of a text."""

    def make(text):
        (tmp_path / "cupy.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return make


def test_a_library_that_takes_device_pointers(cupy):
    cupy(DEVICE)
    assert cuda.gpu().found == "Tensor Tron; MPI is CUDA-aware"


def test_a_library_that_dies_of_them(cupy):
    cupy(DEVICE + "import os\ndef arange(*a, **k): os.kill(os.getpid(), 11)\n")
    assert cuda.gpu().found == ("Tensor Tron; MPI is not CUDA-aware: it died of SIGSEGV when given a device pointer")


def test_a_library_that_refuses_them(cupy):
    cupy(DEVICE + "def arange(*a, **k): raise TypeError('no buffer')\n")
    assert cuda.gpu().found == "Tensor Tron; MPI is not CUDA-aware: TypeError: no buffer"


def test_a_library_that_spoils_what_it_sends(cupy):
    cupy(
        DEVICE
        + "class Spoilt(ndarray):\n    def __eq__(self, other): return array([False])\n"
        + "def zeros_like(a): return empty_like(a).view(Spoilt)\n"
    )
    assert cuda.gpu().found == "Tensor Tron; MPI is not CUDA-aware: it changes the values it sends"


def test_a_library_that_hangs(cupy, monkeypatch):
    monkeypatch.setattr(cuda, "PATIENCE", 3.0)
    cupy(DEVICE + "import time\ndef arange(*a, **k): time.sleep(60)\n")
    assert cuda.gpu().found == "Tensor Tron; MPI is not CUDA-aware: no answer within 3 s"


def test_no_gpu(cupy):
    cupy("raise ImportError('no driver')")
    assert cuda.gpu().found == "none that CuPy can use: ImportError: no driver"


PROMISING = "from mpidl.rma import staging\nstaging.cuda_aware = lambda: True\n"


def test_a_library_that_keeps_its_promise(cupy):
    cupy(DEVICE + PROMISING)
    assert cuda.gpu() == ("Tensor Tron; MPI is CUDA-aware", Verdict.OK, "")


def test_a_library_that_breaks_its_promise(cupy):
    cupy(DEVICE + PROMISING + "import os\ndef arange(*a, **k): os.kill(os.getpid(), 11)\n")
    finding = cuda.gpu()
    assert finding.found.endswith("MPI is not CUDA-aware: it died of SIGSEGV when given a device pointer")
    assert finding.verdict is Verdict.WARNING
    assert 'transfer = "staged"' in finding.remedy
