"""NVRTC compiles the sources of the CUDA kernels, also without a GPU."""

import ctypes
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from mpidl.nn.kernels import cpu, cuda
from mpidl.nn.kernels.cuda import CudaModule

SOURCES = [path.stem for path in sorted(Path(cuda.__file__).parent.glob("*.cu"))]


@pytest.fixture(scope="module")
def nvrtc():
    """NVRTC, from its wheel."""
    (package,) = find_spec("nvidia.cuda_nvrtc").submodule_search_locations
    return ctypes.CDLL(str(next(Path(package, "lib").glob("libnvrtc.so.*"))))


def compiled(nvrtc, text):
    """Return the PTX of a source, or None if it doesn't compile, and the compiler's errors and warnings."""

    def fetched(what):
        size = ctypes.c_size_t()
        assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        result = ctypes.create_string_buffer(size.value)
        assert getattr(nvrtc, f"nvrtcGet{what}")(program, result) == 0
        return result.value.decode()

    program, options = ctypes.c_void_p(), (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_70")
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
    failed = nvrtc.nvrtcCompileProgram(program, len(options), options)
    ptx, log = None if failed else fetched("PTX"), fetched("ProgramLog")
    assert nvrtc.nvrtcDestroyProgram(ctypes.byref(program)) == 0
    return ptx, log


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wide", [False, True])
def test_every_source_compiles_for_every_type(nvrtc, source, dtype, wide):
    text = getattr(cuda, source.upper()).source(dtype, wide)
    ptx, log = compiled(nvrtc, text)
    assert not log
    kernels = re.findall(r"^KERNEL (\w+)", text, re.MULTILINE)
    assert kernels
    assert re.findall(r"\.entry (\w+)", ptx) == kernels
    # A constant of the wrong type would make a kernel for floats several times slower.
    assert dtype == "float64" or ".f64" not in ptx


def test_an_error_in_a_source_is_found(nvrtc):
    ptx, log = compiled(nvrtc, CudaModule("elementwise").source("float32", False).replace("leak *", "leek *"))
    assert ptx is None
    assert '"leek" is undefined' in log


def test_both_packages_have_the_same_kernels():
    own = [
        name for name, each in inspect.getmembers(cuda, inspect.isfunction) if each.__module__.startswith(cuda.__name__)
    ]
    assert [name for name in own if not name.startswith("_")] == sorted(
        name for name, each in vars(cpu).items() if callable(each)
    )
