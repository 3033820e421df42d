"""A directory of a run that goes away while it trains is one line, and whatever takes its place is left alone."""

import os
import shutil
import time

import pytest
from jobs_apart import ended, processes_of_ranks, trains, wait_for

import mpidl
from mpidl.errors import MpidlError


def removed(run):
    shutil.rmtree(run)


def replaced(run):
    run.rename(run.with_name("moved"))
    run.mkdir()


def replaced_by_a_file(run):
    shutil.rmtree(run)
    run.touch()


def replaced_by_a_link(run):
    run.rename(run.with_name("moved"))
    other = run.with_name("other")
    other.mkdir()
    run.symlink_to(other)


def without_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def checkpoints_replaced_by_a_file(run):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").touch()


ENDS = {
    removed: r"run: can't be written: No such file or directory$",
    replaced: r"run: can't be written: the directory was replaced during the run$",
    replaced_by_a_file: r"run(/.*)?: can't be written: ",
    replaced_by_a_link: r"run: can't be written: the directory was replaced during the run$",
    without_checkpoints: r"run/checkpoints: can't be written: No such file or directory$",
    checkpoints_replaced_by_a_file: r"run/checkpoints/.*: can't be written: Not a directory$",
}


@pytest.mark.parametrize("end", ENDS)
def test_in_one_process(tmp_path, end):
    left = []

    def go(record):
        if not left:
            end(tmp_path / "run")
            left.append(sorted(os.listdir(tmp_path)))

    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    with pytest.raises(MpidlError, match=ENDS[end]) as error:
        mpidl.train(network, mpidl.Digits(), epochs=2, dir=tmp_path, device="cpu", report=1e-3, callbacks=[go])
    assert error.value.exit_code == 1
    assert sorted(os.listdir(tmp_path)) == left[0]
    if (found := tmp_path / "run").is_dir() and end not in (without_checkpoints, checkpoints_replaced_by_a_file):
        assert not os.listdir(found)


def assert_one_line(process, tmp_path, text):
    begun = time.monotonic()
    _, errors = ended(process, 1)
    assert time.monotonic() - begun < 60
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if " failed: " in line or "can't be written" in line]
    assert line.endswith(text)
    assert processes_of_ranks(tmp_path) == {}


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (removed, "runs/tally: can't be written: No such file or directory"),
        pytest.param(
            without_checkpoints, "runs/tally/checkpoints: can't be written: No such file or directory",
            marks=pytest.mark.long,
        ),
        pytest.param(
            replaced, "runs/tally: can't be written: the directory was replaced during the run",
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_on_ranks(job, start, tmp_path, end, text):
    settings = ("--set", "run.report=0.1", "--set", "checkpoint.every=0.5", "--set", "run.epochs=100000")
    process = start("train", job, "-n", 3, *settings, TALLY_SECONDS="0.002")
    wait_for(lambda: trains(tmp_path))
    end(tmp_path / "runs" / "tally")
    assert_one_line(process, tmp_path, text)
    left = tmp_path / "runs" / "tally"
    assert end is without_checkpoints or not left.exists() or not os.listdir(left)
