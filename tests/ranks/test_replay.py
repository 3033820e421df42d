"""A recorded run on ranks, played again in one process."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"
LENGTH = ["--set", "run.epochs=2", "--set", "run.record=true"]


def replayed(mpidl, *arguments):
    trained = mpidl("train", DIGITS, "-n", 5, *LENGTH, *arguments)
    assert trained.returncode == 0, trained.stderr
    played = mpidl("simulate", "--replay", "runs/digits", "--json")
    assert played.returncode == 0, played.stderr
    return json.loads(played.stdout)


@pytest.mark.parametrize(
    "settings",
    [
        ["topology.servers=2", "algorithm.wire=topk:0.1"],
        ["topology.servers=1", "algorithm.name=dynsgd", "algorithm.wire_fetch=int8"],
        ["topology.servers=2", "algorithm.name=backup_sync"],
        ["algorithm.name=sync"],
    ],
)
def test_a_deterministic_run_is_replayed_bit_for_bit(mpidl, settings):
    options = [word for setting in ["run.deterministic=true", *settings] for word in ("--set", setting)]
    result = replayed(mpidl, *options)
    assert result["equal"]
    assert result["gradients"] == result["step"] == 2 * 45


def test_one_worker_is_replayed_bit_for_bit_whatever_the_timing(mpidl):
    assert replayed(mpidl, "--set", "topology.servers=3")["equal"]


def test_a_damaged_record_is_one_line(mpidl, tmp_path):
    """Two chunks of different workers have changed places: then what a fetch saw never was."""
    assert mpidl("train", DIGITS, "-n", 4, *LENGTH).returncode == 0
    with h5py.File(tmp_path / "runs/digits/interleaving.h5", "r+") as file:
        before = file["servers/0/arrivals"][...]
        # The run itself may have had one worker's pushes before the other's.
        after = np.sort(before)[::-1]
        file["servers/0/arrivals"][...] = after if (after != before).any() else np.sort(before)
    played = mpidl("simulate", "--replay", "runs/digits")
    assert played.returncode == 1
    assert played.stderr.splitlines() == [
        "mpidl: the recorded interleaving contradicts itself: it is damaged or of another configuration"
    ]


def test_a_run_without_record_is_one_line(mpidl, tmp_path):
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    (tmp_path / "runs/x").mkdir(parents=True)
    played = mpidl("simulate", "--replay", "runs/x")
    assert played.returncode == 2
    assert played.stderr.startswith("mpidl: runs/x: no recorded interleaving to read (interleaving.h5)")
