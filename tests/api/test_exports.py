"""What can be imported from the package itself."""

import subprocess
import sys

import mpidl
from mpidl.algorithms import ALGORITHMS
from mpidl.data import SOURCES
from mpidl.nn import LAYERS, LOSSES
from mpidl.rules import RULES


def test_everything_with_a_name_in_a_configuration_is_exported():
    named = {each for registry in (ALGORITHMS, SOURCES, LAYERS, LOSSES, RULES) for each in registry.values()}
    assert {getattr(mpidl, each.__name__) for each in named} == named


def test_every_export_is_there():
    for name in mpidl.__all__:
        assert getattr(mpidl, name) is not None
    assert set(mpidl.__all__) == set(dir(mpidl)) | {"__version__"}


def test_importing_the_package_imports_nothing_heavy(bare_environment):
    heavy = ("numpy", "msgspec", "numba", "h5py", "mpi4py", "inspect", "typing")
    code = f"import sys, mpidl; print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=bare_environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
