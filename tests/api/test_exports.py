"""What can be imported from the package itself."""

import subprocess
import sys
from pathlib import Path

import mpidl
from mpidl.algorithms import ALGORITHMS
from mpidl.data import SOURCES
from mpidl.nn import LAYERS, LOSSES
from mpidl.rules import RULES

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"


def test_everything_with_a_name_in_a_configuration_is_exported():
    named = {each for registry in (ALGORITHMS, SOURCES, LAYERS, LOSSES, RULES) for each in registry.values()}
    assert {getattr(mpidl, each.__name__) for each in named} == named


def test_every_export_is_there():
    for name in mpidl.__all__:
        assert getattr(mpidl, name) is not None
    assert set(mpidl.__all__) == set(dir(mpidl)) | {"__version__"}


def test_importing_the_package_imports_nothing_heavy(bare_environment):
    heavy = ("numpy", "msgspec", "numba", "h5py", "mpi4py", "torch", "jax", "inspect", "typing")
    code = f"import sys, time, mpidl; print(time.process_time(), *[name for name in {heavy} if name in sys.modules])"
    seconds, *found = said(code, bare_environment)
    assert found == []
    assert float(seconds) <= 0.3


def test_training_a_network_imports_neither_pytorch_nor_jax(bare_environment, tmp_path):
    code = (
        "import sys; from mpidl.cli import main\n"
        f"main(['train', '{DIGITS}', '--set', 'run.epochs=1', '--set', 'run.dir={tmp_path}'])\n"
        "print(*[name for name in ('numpy', 'torch', 'jax') if name in sys.modules])"
    )
    assert said(code, bare_environment) == ["numpy"]


def said(code, environment):
    """Return the words of the last line that a program prints."""
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()[-1].split()
