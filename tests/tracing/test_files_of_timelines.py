"""The files of timelines: which of them a run reads, replaces and removes."""

import os
import shutil

import h5py
import numpy as np
import pytest

from mpidl.cli import main
from mpidl.errors import UsageError
from mpidl.tracing.files import RankSpans, read, remove, write
from mpidl.tracing.spans import SPAN

JOB = """
[run]
name = "run"
steps = 4
trace = true
[data]
source = "digits"
[[model.layer]]
type = "dense"
units = 10
[device]
kind = "cpu"
"""


def spans(*starts):
    found = np.zeros(len(starts), SPAN)
    found["start"], found["end"] = starts, np.add(starts, 0.5)
    return found


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def foreign(tmp_path):
    """A directory of files of HDF5 that are no timelines, some of them by names of timelines."""
    directory = tmp_path / "foreign"
    directory.mkdir()
    for name in ("0.h5", "1-2.h5", "data.h5"):
        with h5py.File(directory / name, "w") as file:
            file["spans"] = np.arange(3)
    (directory / "2.h5").write_text("my own notes")
    return directory


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    assert main(["train", "job.toml"]) == 0
    return tmp_path / "runs" / "run"


def test_a_link_to_a_directory_is_neither_emptied_nor_written_nor_read(run, foreign, capfd):
    write(foreign.parent, RankSpans(7, "worker 0", "here", spans(1.0)))  # a timeline of something else
    (foreign.parent / "trace" / "7.h5").rename(foreign / "7.h5")
    before = contents(foreign)
    shutil.rmtree(run / "trace")
    (run / "trace").symlink_to(foreign)
    capfd.readouterr()
    assert main(["train", "--resume", str(run), "--set", "run.steps=8"]) == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "timeline" in line]
    assert line.endswith("its timeline can't be written: a link, expected a directory")
    assert contents(foreign) == before
    assert main(["report", str(run), "--trace", "out.json.gz"]) == 2
    assert "no timeline, expected a finished run" in capfd.readouterr().err


def test_only_timelines_are_replaced(run, foreign, capfd):
    earlier = contents(run / "trace")
    assert earlier.keys() == {"0.h5"}
    for name in ("1-2.h5", "data.h5", "2.h5"):
        shutil.copy(foreign / name, run / "trace")
    (run / "trace" / "9.h5").touch()  # of a rank that died while it began to write
    before = contents(run / "trace")
    assert main(["train", "--resume", str(run), "--set", "run.steps=8"]) == 0
    after = contents(run / "trace")
    assert before.pop("0.h5") != after.pop("0.h5")
    before.pop("9.h5")
    assert before == after
    # Nor is what has the name of one that is to be written.
    for linked in (False, True):
        (run / "trace" / "0.h5").unlink()
        shutil.copy(foreign / "0.h5", run / "mine.h5")
        if linked:
            os.link(run / "mine.h5", run / "trace" / "0.h5")
        else:
            shutil.copy(run / "mine.h5", run / "trace" / "0.h5")
        before = (run / "mine.h5").read_bytes()
        capfd.readouterr()
        steps = 12 + 4 * linked
        assert main(["train", "--resume", str(run), "--set", f"run.steps={steps}"]) == 0
        assert "rank 0 (worker 0): its timeline can't be written: File exists" in capfd.readouterr().err
        assert (run / "trace" / "0.h5").read_bytes() == (run / "mine.h5").read_bytes() == before


def test_a_rank_that_several_processes_have_played_has_all_their_spans(tmp_path):
    rank = RankSpans(1, "server 0", "here", spans(1.0, 4.0), error=0.1, dropped=3)
    write(tmp_path, rank)
    write(tmp_path, RankSpans(1, "server 0", "here", spans(2.0, 3.0), error=0.1, dropped=5), process=0)
    write(tmp_path, RankSpans(0, "coordinator", "here", spans(), dropped=1), process=0)
    coordinator, server = read(tmp_path)
    assert (coordinator.rank, coordinator.dropped) == (0, 1)
    assert (server.rank, server.dropped, server.error) == (1, 3 + 5, 0.1)
    assert server.spans["start"].tolist() == [1, 2, 3, 4]
    remove(tmp_path)
    with pytest.raises(UsageError, match="no timeline"):
        read(tmp_path)
