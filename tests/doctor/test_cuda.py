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
PROMISING = DEVICE + "from mpidl.rma import staging\nstaging.cuda_aware = lambda: True\n"
#: What a library does with device pointers.
DIES = "import os\ndef arange(*a, **k): os.kill(os.getpid(), 11)\n"
REFUSES = "def arange(*a, **k): raise TypeError('no buffer')\n"
SPOILS = """
class Spoilt(ndarray):
    def __eq__(self, other): return array([False])
def zeros_like(a): return empty_like(a).view(Spoilt)
"""
HANGS = "import time\ndef arange(*a, **k): time.sleep(60)\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DEVICE, "Tensor Tron; MPI is CUDA-aware"),
        (DEVICE + DIES, "Tensor Tron; MPI is not CUDA-aware: it died of SIGSEGV when given a device pointer"),
        (DEVICE + REFUSES, "Tensor Tron; MPI is not CUDA-aware: TypeError: no buffer"),
        (DEVICE + SPOILS, "Tensor Tron; MPI is not CUDA-aware: it changes the values it sends"),
        (DEVICE + HANGS, "Tensor Tron; MPI is not CUDA-aware: no answer within 5 s"),
        ("raise ImportError('no driver')", "none that CuPy can use: ImportError: no driver"),
        (PROMISING, "Tensor Tron; MPI is CUDA-aware"),
        (PROMISING + DIES, "Tensor Tron; MPI is not CUDA-aware: it died of SIGSEGV when given a device pointer"),
    ],
)
def test_what_a_library_does_with_device_pointers(monkeypatch, tmp_path, text, found):
    monkeypatch.setattr(cuda, "PATIENCE", 5.0 if HANGS in text else 60.0)
    (tmp_path / "cupy.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding, broken = cuda.gpu(), text == PROMISING + DIES
    assert (finding.found, finding.verdict) == (found, Verdict.WARNING if broken else Verdict.OK)
    assert ('transfer = "staged"' in finding.remedy) == broken
