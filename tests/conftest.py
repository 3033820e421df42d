"""What all tests share: small models whose results are known, and a watch over ranks that hang."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import fake_cupy
from mpidl.data import Batch
from mpidl.data.dataset import ArraySplit
from mpidl.launch.environment import THREAD_VARIABLES

# Bits depend on the number of threads, also of what tests start; commands that tests call set what isn't set.
os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))

# JAX would take most of a GPU's memory for each process that tests.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# What JAX has compiled for one test or rank, others load.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(sys.prefix) / "compiled-by-jax"))
os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}

# What this user has measured decides no test.
os.environ["XDG_CONFIG_HOME"] = os.devnull

# Ranks make their temporary directories at the same time: each in a place of its own.
if "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ:
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    own = Path(tempfile.gettempdir()) / f"mpidl-rank-{rank}"
    own.mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)

# On a loaded machine an example may take any time, and so may drawing it; the limit of a whole test is that of
# pytest-timeout. Fixtures of these tests may be the same for all examples.
SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("thorough", deadline=None, suppress_health_check=SUPPRESSED)
settings.register_profile("fast", settings.get_profile("thorough"), max_examples=25)
settings.load_profile("fast")  # unless --hypothesis-profile names another

#: Seconds after which a test that is still running prints its stack, on every rank; pytest-timeout ends it later.
STUCK_AFTER = 300
#: How the variables begin that an MPI launcher or this package sets.
OF_LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "MPI_", "SLURM_", "MPIDL_")


@pytest.fixture(autouse=True)
def stack_if_stuck():
    """Print this rank's stack if the test hangs: the others then do so too, before any is ended."""
    faulthandler.dump_traceback_later(STUCK_AFTER, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def comm():
    """Return a communicator of the test's own, of all ranks."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    comm.Barrier()
    yield comm
    comm.Barrier()
    comm.Free()


@pytest.fixture
def one_node(comm):
    """Skip the test where ranks are on several nodes: they neither wake each other nor share cores; roles differ."""
    from mpidl.rma.nodes import neighbours

    node = neighbours(comm)
    several = node.size < comm.size
    node.Free()
    if several:
        pytest.skip("ranks on several nodes")


def pytest_addoption(parser):
    """Let runs on ranks that leave their transport open take another one."""
    choices = ["windows", "mixed", "messages"]
    parser.addoption("--transport", choices=choices, help="transport of runs on ranks whose own is auto")


def pytest_report_header(config):
    """Name the MPI library."""
    if not config.getoption("--with-mpi", default=False):
        return "without MPI"
    from mpi4py import MPI

    return f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}, {MPI.Get_library_version().splitlines()[0]}"


def gpu():
    """Whether there is one."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except (ImportError, RuntimeError):
        return False


STAND_IN = pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler")
GPU = pytest.mark.skipif(not gpu(), reason="no GPU")


@pytest.fixture(params=[pytest.param("stand-in", marks=STAND_IN), pytest.param("GPU", marks=GPU)])
def cupy(request, monkeypatch):
    """CuPy, or what stands in for it."""
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy.fake())
    import cupy

    return cupy


class LeastSquares:
    """Linear regression: a model of a user's own, with a gradient that depends on the parameters."""

    def __init__(self, size: int, dtype: str = "float64") -> None:
        self.parameters = np.random.default_rng(5).normal(size=size).astype(dtype)

    def loss_and_gradient(self, batch: Batch):
        inputs = batch.inputs.astype(self.parameters.dtype)
        error = inputs @ self.parameters - batch.targets[:, 0].astype(self.parameters.dtype)
        return float(np.mean(error**2) / 2), inputs.T @ error / len(error)


class Tally:
    """A model whose gradient is made of integers, so that sums don't depend on their order.

    Element i of a batch's gradient is the sum of (i + 1) x (sample + 1) over the batch's samples.
    """

    def __init__(self, size: int) -> None:
        self.parameters = np.zeros(size)

    def loss_and_gradient(self, batch: Batch):
        return 0.0, (1.0 + np.arange(self.parameters.size)) * np.sum(batch.inputs[:, 0] + 1)

    def total(self, samples: int, epochs: int) -> np.ndarray:
        """Return the sum of all gradients of a run over samples numbered 0 to samples - 1."""
        return (1.0 + np.arange(self.parameters.size)) * epochs * samples * (samples + 1) / 2


@pytest.fixture
def least_squares():
    """Return a function that makes a least-squares problem: (model, split of 101 samples)."""

    def make(size: int = 13, dtype: str = "float64"):
        random = np.random.default_rng(3)
        inputs = random.normal(size=(101, size)).astype(np.float32)
        targets = (inputs @ random.normal(size=(size, 1)) + 1).astype(np.float32)
        return LeastSquares(size, dtype), ArraySplit(inputs, targets)

    return make


@pytest.fixture
def tally():
    """Return a function that makes a tally: (model, split of 101 numbered samples)."""

    def make(size: int = 13, samples: int = 101):
        inputs = np.arange(samples, dtype=np.float32)[:, None]
        return Tally(size), ArraySplit(inputs, np.zeros((samples, 1), np.float32))

    return make


@pytest.fixture
def calls():
    """Return a function that counts the calls of Python and of C within another: a cost that no machine changes."""

    def count(function):
        events = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            function()
        finally:
            sys.setprofile(None)
        return sum(event.endswith("call") for event in events)

    return count


@pytest.fixture
def bare_environment():
    """The environment without what an MPI launcher around the tests put into it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}


@pytest.fixture
def mpidl(bare_environment, tmp_path):
    """Runs ``mpidl ARGUMENTS`` in an empty directory; ``variables`` are set in its environment."""

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, "-P", "-m", "mpidl", *map(str, arguments)],
            cwd=tmp_path,
            env=bare_environment | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let a test of several ranks fail on all of them if it fails on one, so that none goes on alone."""
    report = yield
    if call.when == "call" and item.get_closest_marker("mpi") and item.config.getoption("--with-mpi"):
        from mpi4py import MPI

        verdicts = MPI.COMM_WORLD.allgather(report.outcome)
        if report.outcome == "passed" and "failed" in verdicts:
            report.outcome = "failed"
            report.longrepr = f"failed on rank {verdicts.index('failed')}"
    return report
