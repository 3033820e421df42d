"""A recorded run on ranks, played again in one process."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpidl.config import load
from mpidl.errors import MpidlError, UsageError
from mpidl.runs.replay import replay

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"
LENGTH = ("run.epochs=2", "run.record=true")


def recorded(comm, path, *settings, source=DIGITS):
    """Train on the ranks of the world; return the directory of the run."""
    from mpidl.job.build import build
    from mpidl.runs.ranks import run

    config = load(source, [*LENGTH, f"run.dir={path}", *settings])
    run(config, lambda: build(config), comm)
    return path / "digits"


def test_a_run_of_several_servers_and_workers_is_replayed_bit_for_bit(mpidl):
    settings = (*LENGTH, "run.deterministic=true", "topology.servers=2", "algorithm.wire=topk:0.1")
    trained = mpidl("train", DIGITS, "-n", 5, *(word for each in settings for word in ("--set", each)))
    assert trained.returncode == 0, trained.stderr
    played = mpidl("simulate", "--replay", "runs/digits", "--json")
    assert played.returncode == 0, played.stderr
    result = json.loads(played.stdout)
    assert result["equal"]
    assert result["gradients"] == result["step"] == 2 * 45


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    "settings",
    [["algorithm.name=dynsgd", "algorithm.wire_fetch=int8"], ["algorithm.name=backup_sync"], ["algorithm.name=sync"]],
)
def test_a_deterministic_run_is_replayed_bit_for_bit(comm, shared_path, settings):
    run = recorded(comm, shared_path, "run.deterministic=true", *settings)
    if comm.rank == 0:
        result = replay(run)
        assert result["equal"]
        assert result["gradients"] == result["step"] == 2 * 45


@pytest.mark.mpi(min_size=4)
def test_running_statistics_beside_signs_are_replayed_bit_for_bit(comm, shared_path, tmp_path):
    source = tmp_path / "digits.toml"
    normalised = 'units = 128\n\n[[model.layer]]\ntype = "batch_normalisation"\n'
    source.write_text(DIGITS.read_text().replace("units = 128\n", normalised))
    settings = ["run.deterministic=true", "algorithm.wire=onebit", "algorithm.wire_fetch=onebit"]
    run = recorded(comm, shared_path, *settings, source=source)
    if comm.rank == 0:
        assert replay(run)["equal"]
        assert json.loads((run / "summary.json").read_text())["test_accuracy"] > 0.7


@pytest.mark.mpi(min_size=4)
def test_one_worker_is_replayed_bit_for_bit_whatever_the_timing(comm, shared_path):
    run = recorded(comm, shared_path, f"topology.servers={comm.size - 2}")
    if comm.rank == 0:
        assert replay(run)["equal"]


@pytest.mark.mpi(min_size=4)
def test_a_damaged_record_is_one_line(comm, shared_path):
    """Two chunks of different workers have changed places: then what a fetch saw never was."""
    run = recorded(comm, shared_path)
    if comm.rank == 0:
        with h5py.File(run / "interleaving.h5", "r+") as file:
            before = file["servers/0/arrivals"][...]
            # The run itself may have had one worker's pushes before the other's.
            after = np.sort(before)[::-1]
            file["servers/0/arrivals"][...] = after if (after != before).any() else np.sort(before)
        line = "^the recorded interleaving contradicts itself: it is damaged or of another configuration$"
        with pytest.raises(MpidlError, match=line):
            replay(run)


def test_a_run_without_record_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"no recorded interleaving to read \(interleaving\.h5\)"):
        replay(tmp_path)
