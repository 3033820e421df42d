"""The files of a run, and statistics of staleness."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from full_disk import full_disk
from mpidl.config import from_dict, load
from mpidl.errors import MpidlError, UsageError
from mpidl.report.recorder import Recorder, record_event
from mpidl.shards.staleness import Histogram


def configuration(directory, name="name"):
    return from_dict(
        {
            "run": {"dir": str(directory), "name": name},
            "data": {"source": "digits"},
            "model": {"layer": [{"type": "dense", "units": 10}]},
        }
    )


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_of_a_run(tmp_path):
    config = configuration(tmp_path / "a" / "runs")
    recorder = Recorder(config)
    assert recorder.directory == tmp_path / "a" / "runs" / "name"
    recorder.metric({"time": 1.5, "loss": float("nan"), "samples": np.int64(3)})
    assert records(recorder.directory / "metrics.jsonl") == [{"time": 1.5, "loss": None, "samples": 3}]
    recorder.metric({"histogram": np.arange(3), "loss": np.float32(0.5)})
    assert records(recorder.directory / "metrics.jsonl")[1] == {"histogram": [0, 1, 2], "loss": 0.5}
    recorder.event("checkpoint", rank=1, role="server 0", step=7)
    (event,) = records(recorder.directory / "events.jsonl")
    assert event.pop("time") > 1e9
    assert event == {"event": "checkpoint", "rank": 1, "role": "server 0", "step": 7}
    recorder.summary({"seconds": 1.0, "staleness": {"mean": np.float64(0.5)}})
    assert json.loads((recorder.directory / "summary.json").read_text()) == {
        "seconds": 1.0,
        "staleness": {"mean": 0.5},
    }
    recorder.close()
    assert load(recorder.directory / "config.toml") == config
    assert sorted(path.name for path in recorder.directory.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.toml",
        "events.jsonl",
        "metrics.jsonl",
        "summary.json",
    ]


def test_no_run_writes_over_another(tmp_path):
    names = [Recorder(configuration(tmp_path)).directory.name for _ in range(3)]
    assert names == ["name", "name-2", "name-3"]
    assert load(tmp_path / "name-3" / "config.toml").run.name == "name-3"


def test_a_resumed_run_goes_on_in_its_directory(tmp_path):
    first = Recorder(configuration(tmp_path))
    first.metric({"samples": 1})
    first.close()
    with (first.directory / "metrics.jsonl").open("a") as file:
        file.write('{"samples": 2, "lo')
    longer = configuration(tmp_path)
    longer = replace(longer, run=replace(longer.run, epochs=99))
    second = Recorder(longer, resume=True, samples=2)
    second.metric({"samples": 3})
    assert second.directory == first.directory
    assert records(second.directory / "metrics.jsonl") == [{"samples": 1}, {"samples": 3}]
    assert load(second.directory / "config.toml").run.epochs == 99


@pytest.mark.parametrize("by_the_run", [True, False])
def test_a_line_that_a_death_has_cut_short_spoils_no_other(tmp_path, by_the_run):
    recorder = Recorder(configuration(tmp_path))
    events = recorder.directory / "events.jsonl"
    events.write_text('{"time": 17')
    if by_the_run:
        recorder.event("failure", 0, "coordinator")
    else:
        record_event(recorder.directory, "failure", 0, "coordinator")
    torn, line = events.read_text().splitlines()
    assert (torn, json.loads(line)["event"]) == ('{"time": 17', "failure")
    recorder.close()
    assert Recorder(configuration(tmp_path), resume=True).counts == {"failure": 1}


@pytest.mark.parametrize("kind", ["file", "dangling"])
def test_a_directory_that_cannot_be_made(tmp_path, kind):
    runs = tmp_path / "runs"
    if kind == "file":
        runs.touch()
    else:
        runs.symlink_to(tmp_path / "absent" / "deeper")
    with pytest.raises(UsageError) as error:
        Recorder(configuration(runs))
    assert str(error.value).startswith(f"run.dir: can't write in {runs / 'name'}: ")


def test_a_run_that_was_stopped_before_it_had_a_directory_begins_in_it(tmp_path):
    Recorder(configuration(tmp_path), resume=True).close()
    assert (tmp_path / "name" / "config.toml").exists()


@pytest.mark.parametrize("content", ["{", "[" * 20_000, "[]", "notes"])
def test_a_file_of_that_name_that_is_no_summary_stays(tmp_path, content):
    first = Recorder(configuration(tmp_path))
    first.close()
    (first.directory / "summary.json").write_text(content)
    with pytest.raises(UsageError, match=r"summary\.json: the file is not a run's, expected no such name"):
        Recorder(configuration(tmp_path), resume=True)
    assert (first.directory / "summary.json").read_text() == content


@pytest.mark.parametrize("content", [None, b"", b"\0" * 4096])
def test_the_summary_of_a_run_that_goes_on_holds_no_longer(tmp_path, content):
    first = Recorder(configuration(tmp_path))
    first.summary({"samples": 1})
    first.close()
    if content is None:
        assert (first.directory / "summary.json").exists()
    else:  # what a crash of the machine may leave
        (first.directory / "summary.json").write_bytes(content)
    Recorder(configuration(tmp_path), resume=True).close()
    assert not (first.directory / "summary.json").exists()


def test_a_full_disk(tmp_path):
    recorder = Recorder(configuration(tmp_path))
    recorder.summary({"first": 1})
    recorder.metric({"samples": 1})
    with full_disk(), pytest.raises(MpidlError) as error:
        recorder.metric({"text": "x" * 2000})
    assert str(error.value) == f"{tmp_path / 'name' / 'metrics.jsonl'}: File too large"
    recorder.event("first", 0, "coordinator")
    with full_disk():
        record_event(recorder.directory, "second", 1, "server 0", text="x" * 2000)
        with pytest.raises(MpidlError, match=r"events.jsonl: File too large"):
            recorder.event("second", 0, "coordinator", text="x" * 2000)
    recorder.metric({"samples": 2})
    recorder.event("third", 0, "coordinator")
    assert records(recorder.directory / "metrics.jsonl") == [{"samples": 1}, {"samples": 2}]
    assert [event["event"] for event in records(recorder.directory / "events.jsonl")] == ["first", "third"]
    with full_disk(), pytest.raises(MpidlError, match=r"summary.json: File too large"):
        recorder.summary({"text": "x" * 2000})
    assert json.loads((recorder.directory / "summary.json").read_text()) == {"first": 1}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(1, 40))
def test_statistics_of_staleness(values, bins):
    counts = np.bincount(np.minimum(values, bins - 1), minlength=bins)
    statistics = Histogram(counts, sum(values), max(values)).statistics()
    assert statistics["mean"] == pytest.approx(np.mean(values))
    assert statistics["max"] == max(values)
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        exact = np.percentile(values, 100 * fraction, method="inverted_cdf")
        assert statistics[name] == (exact if exact < bins - 1 else max(values))


def test_statistics_without_pushes():
    assert Histogram().statistics() == {"mean": 0.0, "p50": 0, "p99": 0, "max": 0}


def test_a_run_that_does_not_begin_leaves_nothing_that_it_made(tmp_path):
    recorder = Recorder(configuration(tmp_path / "a" / "runs"))
    recorder.discard()
    assert list(tmp_path.iterdir()) == []
    recorder = Recorder(configuration(tmp_path / "a" / "runs"))
    (recorder.directory / "notes.txt").write_text("mine")
    recorder.discard()
    assert [path.name for path in (tmp_path / "a" / "runs" / "name").iterdir()] == ["notes.txt"]
    shutil.rmtree(tmp_path / "a")
    other = Recorder(configuration(tmp_path / "a" / "runs"))
    Recorder(configuration(tmp_path / "a" / "runs")).discard()
    assert [path.name for path in (tmp_path / "a" / "runs").iterdir()] == ["name"]
    resumed = Recorder(configuration(tmp_path / "a" / "runs"), resume=True)
    resumed.discard()
    assert other.directory.exists()


def test_a_resumed_run_has_no_record_of_what_it_does_again(tmp_path):
    """Not even a torn line; what others have linked keeps its content."""
    recorder = Recorder(configuration(tmp_path))
    for samples in (100, 200, 200, 300):
        recorder.metric({"samples": samples, "time": 1.0})
    recorder.close()
    path, copy = recorder.directory / "metrics.jsonl", tmp_path / "copy"
    with path.open("a") as file:
        file.write('[1]\n{"samples": "x"}\n{"sam')
    copy.hardlink_to(path)
    for samples, kept in ((300, [100, 200, 200]), (200, [100]), (100, []), (0, [])):
        again = Recorder(configuration(tmp_path), resume=True, samples=samples)
        assert [each["samples"] for each in records(path)] == kept
        again.metric({"samples": samples, "time": 1.0})
        again.close()
    assert copy.read_text().endswith('[1]\n{"samples": "x"}\n{"sam')
