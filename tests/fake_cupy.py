"""A stand-in for CuPy made of NumPy: what mpidl uses of it, as strict about where an array lies as a GPU is.

Kernels are compiled by the host's C++ compiler and run as twelve threads would, one after the other.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

COMPILER = shutil.which("g++") or shutil.which("c++")
BLOCKS, THREADS = 3, 4
SHIM = """
#include <cmath>
using namespace std;
#define __global__
#define __device__
struct Dim { int x; };
extern "C" { Dim blockIdx, threadIdx, blockDim, gridDim; }
"""
TYPES = {
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class Array(np.ndarray):
    """An array that lies on the device: it mixes with no array of the host's."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        self._check([*inputs, *out])
        if out:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return out[0] if out else on_device(result)

    def __array_function__(self, function, types, arguments, options):
        self._check([*arguments, options.get("out")])
        plain = {name: _plain(value) for name, value in options.items()}
        return on_device(function(*map(_plain, arguments), **plain))

    def __setitem__(self, where, value):
        self._check([value])
        super().__setitem__(where, value)

    @staticmethod
    def _check(arrays):
        for each in arrays:
            if isinstance(each, np.ndarray) and not isinstance(each, Array):
                raise TypeError("an array of the host among the device's")

    @property
    def data(self):
        """Where it lies."""
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__

    def set(self, host, stream=None):
        """Copy from an array of the host's, which stays as it is until the stream is synchronised."""
        assert type(host) is np.ndarray
        assert (host.shape, host.dtype) == (self.shape, self.dtype)
        assert self.flags.c_contiguous
        np.copyto(self.view(np.ndarray), host)
        STREAM.read.append((host, host.tobytes()))

    def get(self, stream=None, order="C", out=None, blocking=True):
        """Copy to an array of the host's: where not `blocking`, once the stream is synchronised."""
        if out is None:
            return self.view(np.ndarray).copy()
        assert type(out) is np.ndarray
        assert (out.shape, out.dtype) == (self.shape, self.dtype)
        assert out.flags.c_contiguous
        STREAM.pending.append((out, self.view(np.ndarray)))
        if blocking:
            STREAM.synchronize()
        return out


def _plain(values):
    if isinstance(values, list | tuple):
        return type(values)(map(_plain, values))
    return values.view(np.ndarray) if isinstance(values, Array) else values


def on_device(result):
    return result.view(Array) if isinstance(result, np.ndarray) else result


class Stream:
    """The one stream of the one device."""

    def __init__(self):
        self.pending, self.read = [], []
        #: Whether memory that the device reads must stay as it is; not where processes share it.
        self.strict = True

    def synchronize(self):
        """Do what was asked for since the last time."""
        for host, device in self.pending:
            np.copyto(host, device)
        self.pending.clear()
        for host, then in self.read:
            assert not self.strict or host.tobytes() == then, "overwritten before the device had read it"
        self.read.clear()


STREAM = Stream()


class RawModule:
    """Kernels compiled for the host."""

    def __init__(self, code):
        self._library = _library(code)

    def get_function(self, name):
        """Return what launches a kernel."""
        kernel = getattr(self._library, name)
        kernel.restype = None

        def launch(grid, block, arguments):
            assert 0 < grid[0] < 1 << 31
            assert 0 < block[0] <= 1024
            values = [
                ctypes.c_void_p(each.ctypes.data) if isinstance(each, Array) else TYPES[each.dtype.name](each)
                for each in arguments
            ]
            place = {name: ctypes.c_int.in_dll(self._library, name) for name in ("blockIdx", "threadIdx")}
            ctypes.c_int.in_dll(self._library, "gridDim").value = BLOCKS
            ctypes.c_int.in_dll(self._library, "blockDim").value = THREADS
            for place["blockIdx"].value in range(BLOCKS):
                for place["threadIdx"].value in range(THREADS):
                    kernel(*values)

        return launch


class ElementwiseKernel:
    """A loop over vectors of one type, `T`, compiled for the host."""

    def __init__(self, inputs, outputs, body, name, options):
        assert name.isidentifier()
        # Else a GPU contracts products and sums, and rounds otherwise than the host.
        assert options == ("--fmad=false",)
        self._inputs, self._outputs = (names.removeprefix("T ").split(", T ") for names in (inputs, outputs))
        self._body = body

    def __call__(self, *arguments):
        vectors = [each for each in arguments if isinstance(each, np.ndarray)]
        for each in vectors:
            assert type(each) is Array
            assert (each.dtype, each.shape) == (vectors[0].dtype, vectors[0].shape)
            assert each.flags.c_contiguous
        name = vectors[0].dtype.name
        kernel = self._compiled({"float32": "float", "float64": "double"}[name], len(vectors) - len(self._outputs))
        kernel.restype = None
        values = [
            ctypes.c_void_p(each.ctypes.data) if isinstance(each, Array) else TYPES[name](each) for each in arguments
        ]
        kernel(ctypes.c_int64(vectors[0].size), *values)

    def _compiled(self, real, vectors):
        """Return the loop for this type; the first inputs are vectors, the others scalars."""
        read, scalars = self._inputs[:vectors], self._inputs[vectors:]
        taken = ["long n", *(f"const T *{name}_vector" for name in read), *(f"T {name}" for name in scalars)]
        taken += [f"T *{name}_vector" for name in self._outputs]
        elements = [f"const T {name} = {name}_vector[i];" for name in read]
        elements += [f"T &{name} = {name}_vector[i];" for name in self._outputs]
        loop = "\n".join(["for (long i = 0; i < n; i++) {", *elements, self._body, "}"])
        return _library(f'typedef {real} T;\nextern "C" void run({", ".join(taken)}) {{\n{loop}\n}}').run


class Cublas:
    """Products of matrices, by the addresses that they are given."""

    def __init__(self):
        self.sgemmStridedBatched = partial(self._product, "float32")
        self.dgemmStridedBatched = partial(self._product, "float64")

    def _product(
        self, dtype, handle, how_a, how_b, m, n, k, alpha, a, lda, step_a, b, ldb, step_b, beta, c, ldc, step_c, pairs
    ):
        assert handle == "handle"
        alpha, beta = (
            np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(TYPES[dtype])), (1,))[0] for at in (alpha, beta)
        )
        a, b, c = (
            self._matrices(dtype, *each, pairs)
            for each in ((a, how_a, m, k, lda, step_a), (b, how_b, k, n, ldb, step_b), (c, 0, m, n, ldc, step_c))
        )
        product = alpha * np.matmul(a, b)
        c[:] = product + beta * c if beta else product

    @staticmethod
    def _matrices(dtype, address, transposed, rows, columns, leading, step, pairs):
        """Return matrices whose columns follow each other, or those of their transposes."""
        rows, columns = (columns, rows) if transposed else (rows, columns)
        assert leading >= max(1, rows)
        if not rows or not columns:
            found = np.empty((pairs, rows, columns), dtype)
        else:
            elements = (pairs - 1) * step + (columns - 1) * leading + rows
            memory = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(TYPES[dtype])), (elements,))
            strides = (step * memory.itemsize, memory.itemsize, leading * memory.itemsize)
            found = np.lib.stride_tricks.as_strided(memory, (pairs, rows, columns), strides)
        return found.swapaxes(1, 2) if transposed else found


class ReductionKernel:
    """A sum of what an expression is of vectors that are broadcast."""

    def __init__(self, inputs, outputs, each, reduce, post, identity, name):
        assert name.isidentifier()
        assert (reduce, post, identity) == ("a + b", f"{outputs.removeprefix('T ')} = a", "0")
        self._inputs, self._each = inputs.removeprefix("T ").split(", T "), compile(each, name, "eval")

    def __call__(self, *arguments, out, axis):
        for each in (*arguments, out):
            assert type(each) is Array
            assert each.dtype == out.dtype
        names = dict(zip(self._inputs, map(_plain, arguments), strict=True))
        eval(self._each, {}, names).sum(axis=axis, out=_plain(out))


@cache
def _library(code: str) -> ctypes.CDLL:
    """Compile a kernels' text."""
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / f"{hashlib.sha256(code.encode()).hexdigest()}.cpp"
        source.write_text(SHIM + code)
        library = source.with_suffix(".so")
        command = [COMPILER, "-O1", "-Wall", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
        made = subprocess.run([*command, "-o", library, source], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        return ctypes.CDLL(str(library))


class CUDARuntimeError(RuntimeError):
    """What CuPy raises where CUDA fails."""


def fake(devices: int = 1) -> ModuleType:
    """Return a CuPy that finds a number of devices; ``module.cuda.used`` lists those that were chosen,
    ``module.cuda.pinned`` the bytes of pinned memory that were asked for.
    """

    def count():
        if not devices:
            raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return devices

    class Device:
        def __init__(self, number):
            assert number < devices
            self.number = number

        def use(self):
            module.cuda.used.append(self.number)

    def pin(size):
        module.cuda.pinned.append(size)
        return bytearray(size)

    runtime = SimpleNamespace(
        getDeviceCount=count,
        getDeviceProperties=lambda number: {"name": f"Fake {number}".encode()},
        CUDARuntimeError=CUDARuntimeError,
    )
    module = _Fake("cupy")
    module.ndarray, module.RawModule = Array, RawModule
    module.ElementwiseKernel, module.ReductionKernel = ElementwiseKernel, ReductionKernel
    module.asarray = lambda values: values if isinstance(values, Array) else np.array(values).view(Array)
    module.cuda = SimpleNamespace(
        runtime=runtime, Device=Device, used=[], pinned=[], get_current_stream=lambda: STREAM, alloc_pinned_memory=pin,
        cublas=Cublas(), device=SimpleNamespace(get_cublas_handle=lambda: "handle"),
    )  # fmt: skip
    return module


class _Fake(ModuleType):
    """NumPy's functions, whose results lie on the device."""

    def __getattr__(self, name):
        member = getattr(np, name)
        if isinstance(member, type) or not callable(member):
            return member
        return lambda *arguments, **options: on_device(member(*arguments, **options))
