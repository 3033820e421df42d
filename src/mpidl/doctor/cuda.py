"""A test whether MPI accepts pointers to a GPU's memory, in a separate process, because other MPIs may crash."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

from mpidl.doctor.examination import Finding

#: Prefixes of a launcher's variables for its ranks, to be hidden from processes that it didn't start.
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "HYDRA_", "HYDI_", "I_MPI_HYDRA")
#: Seconds after which that process is assumed to hang.
PATIENCE = 15.0
AWARE, NOT_AWARE = "CUDA-aware", "not CUDA-aware"
#: Output of that process when the library claims to be CUDA-aware.
PROMISED = "promised"


def gpu() -> Finding:
    """Find a GPU, and test whether MPI is CUDA-aware."""
    if importlib.util.find_spec("cupy") is None:
        present = any(Path("/dev").glob("nvidia[0-9]*"))
        remedy = "`pip install 'mpidl[cuda12]'`, or cuda13 for newer drivers, to train on it"
        return Finding.warning(present, "found, but CuPy is missing" if present else "none", remedy)
    said, cause = _try()
    device, *lines = said.strip().split("\n")
    if not device:
        return Finding(f"none that CuPy can use: {cause}")
    promised = lines[:1] == [PROMISED]
    answer = "".join(lines[promised:]) or f"{NOT_AWARE}: {cause}"
    remedy = '`transfer = "staged"` in [device], because the library says that it is CUDA-aware'
    return Finding.warning(promised and answer != AWARE, f"{device}; MPI is {answer}", remedy)


def _try() -> tuple[str, str]:
    """Return the output of a process that calls `probe`, and the cause of its end, in a few words."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    command = [sys.executable, "-P", "-m", "mpidl.doctor.cuda"]
    try:
        process = subprocess.run(
            command, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(), f"no answer within {PATIENCE:g} s"
    if process.returncode < 0:
        return process.stdout, f"it died of {signal.Signals(-process.returncode).name} when given a device pointer"
    return process.stdout, process.stderr.strip().rpartition("\n")[2] or f"exit code {process.returncode}"


def probe() -> None:
    """Print the GPU's name, and whether puts and gets of device memory work in a window."""
    import cupy

    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), flush=True)
    from mpidl.rma.staging import cuda_aware, keeps_device_values

    if cuda_aware():
        print(PROMISED, flush=True)
    right = keeps_device_values(cupy)
    print(AWARE if right else f"{NOT_AWARE}: it changes the values it sends", flush=True)


if __name__ == "__main__":
    probe()
