"""A module that is resumed by another number of servers goes on to the last bit, with all that it has."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import mpidl
import torch_modules
from mpidl.config import toml
from torch_modules import noisy

COUNTER, FROZEN, STATISTIC = "3.num_batches_tracked", "1.weight", "3.running_mean"


CONFIG = {
    "run": {"seed": 5, "deterministic": True},
    "data": {"source": "digits", "batch": 37},
    "model": {"factory": "torch_modules:noisy", "loss": "cross_entropy"},
    "server": {"rule": "adam", "rate": 0.01},
    "device": {"kind": "cpu"},
}


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that trains in one process; it returns the trained tensors."""
    monkeypatch.chdir(tmp_path)

    def run(name, steps, **options):
        summary = mpidl.train(config=CONFIG, name=name, steps=steps, **options)
        return mpidl.load(summary["run_dir"]).tensors

    return run


def compare(resumed, through):
    assert resumed.keys() == through.keys() == noisy().state_dict().keys()
    for name, values in through.items():
        assert resumed[name].tobytes() == values.tobytes(), name
    assert resumed[COUNTER] == 60


@pytest.mark.parametrize("servers", [1, 3])
def test_in_one_process(train, servers):
    through = train("through", 60, servers=2)
    begun = noisy(seed=5).state_dict()
    assert np.array_equal(through[FROZEN], begun[FROZEN])
    assert not np.array_equal(through[STATISTIC], begun[STATISTIC])
    train("struck", 23, servers=2)
    compare(train("struck", 60, servers=servers, resume=True), through)


def test_other_values_than_those_of_the_checkpoint_are_not_used(train):
    through = train("through", 60)
    train("struck", 23)
    module = noisy(seed=6)
    mpidl.train(module, loss="cross_entropy", config=CONFIG, name="struck", steps=60, resume=True)
    compare({name: tensor.numpy() for name, tensor in module.state_dict().items()}, through)


@pytest.mark.long
def test_on_ranks(train, tmp_path, bare_environment):
    through = train("through", 60, servers=1)
    train("struck", 23, servers=2)
    shutil.copy(torch_modules.__file__, tmp_path)
    (tmp_path / "noisy.toml").write_text(toml.dump(CONFIG))
    command = [sys.executable, "-m", "mpidl", "train", "noisy.toml", "-n", "3", "--json", "--resume", "runs/struck"]
    command += ["--set", "run.steps=60", "--set", "run.name=struck"]
    ended = subprocess.run(command, env=bare_environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["ranks"] == 3
    compare(mpidl.load(tmp_path / "runs" / "struck").tensors, through)
