"""What can be imported from the package itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpidl
from mpidl.algorithms import ALGORITHMS
from mpidl.data import SOURCES
from mpidl.launch.environment import LAUNCHERS
from mpidl.nn import LAYERS, LOSSES
from mpidl.rules import RULES

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"


@pytest.mark.parametrize(
    ("room", "registry"),
    [("algorithms", ALGORITHMS), ("data", SOURCES), ("nn", LAYERS), ("nn", LOSSES), ("rules", RULES)],
)
def test_everything_with_a_name_in_a_configuration_is_exported_by_its_room(room, registry):
    for each in registry.values():
        assert getattr(getattr(mpidl, room), each.__name__) is each


def test_the_error_for_a_class_of_a_room_names_the_room():
    """However others spell it."""
    for name, right in (
        *((name.partition(".")[2], name) for name in ("nn.Conv2d", "data.Idx", "rules.Adamw", "config.DeviceSection")),
        *(("SGD", "Sgd"), ("AdamW", "rules.Adamw"), ("EASGD", "algorithms.Easgd"), ("CIFAR10", "data.Cifar10")),
    ):
        with pytest.raises(AttributeError, match=rf"^mpidl\.{name} is mpidl\.{re.escape(right)}$"):
            getattr(mpidl, name)
    with pytest.raises(AttributeError, match="Conv9d"):
        mpidl.Conv9d  # noqa: B018
    assert not hasattr(mpidl, "conv2d")


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


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        *({rank: "0", size: "2"} for rank, size, _ in LAUNCHERS),
        {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"},
    ],
)
def test_only_several_ranks_end_together(bare_environment, variables):
    code = "import sys, mpidl; print(sys.excepthook is sys.__excepthook__)"
    assert said(code, bare_environment | variables) == [str("2" not in variables.values())]


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
