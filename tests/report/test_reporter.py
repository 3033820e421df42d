"""The files of a run, and what a reporter writes of totals: its last figures, and no more than a disk holds."""

import json
import re
import shutil
import tomllib
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from full_disk import full_disk
from mpidl.config import from_dict, load
from mpidl.engines.totals import EpochLosses, Spent, Totals
from mpidl.errors import MpidlError, UsageError
from mpidl.job.build import build
from mpidl.job.placed import place
from mpidl.report.recorder import Recorder, record_event
from mpidl.report.reporter import Reporter
from mpidl.shards.staleness import Histogram


def configuration(directory, name="name", **run):
    return from_dict(
        {
            "run": {"dir": str(directory), "name": name, **run},
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
    second = Recorder(configuration(tmp_path, epochs=99), resume=True, samples=2)
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


SAMPLES = 1437
SIZES = {"ranks": 4, "servers": 1, "replicas": 2, "partitions": 1, "relays": 0}
END = {"seconds_to_target": None, "stopped": None, "best": None}


@pytest.fixture
def reporter(tmp_path):
    config = configuration(tmp_path, epochs=100)
    return Reporter(place(build(config), 1), Recorder(config), {"seed": 7})


def reported(reporter):
    return records(reporter.recorder.directory / "metrics.jsonl")


def totals(seconds, epochs, loss):
    """Totals after a number of epochs; `loss` is the sum over the samples in units of an epoch."""
    now = 1000.0 + seconds
    return Totals(
        now=now,
        samples=int(epochs * SAMPLES),
        loss=loss * SAMPLES,
        weight=epochs * SAMPLES,
        first_fetch=1000.0,
        last_push=now,
        spent=Spent(busy_seconds=[0.0]),
    )


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_last_report_and_the_summary_have_the_last_figures(reporter, capsys, interrupted):
    """Ten epochs in 0.4 s, at a loss of 10, 9, ..., 1: rates over a while were computed once, after 0.35 s."""
    reporter.report_due(totals(0.35, 1, 10.0))
    for epoch in range(2, 10):
        now = totals(0.35 + epoch / 1000, epoch, sum(range(11 - epoch, 11)))
        reporter.report_due(now)
        reporter.evaluated(now, epoch, {"test_loss": 0.5, "test_accuracy": 0.75})
    end = totals(0.4, 10, 55.0)
    if not interrupted:
        reporter.evaluated(end, 10.0, {"test_loss": 0.25, "test_accuracy": 0.875}, final=True)
    summary = reporter.close(end, SIZES, interrupted=interrupted, **END)
    last = reported(reporter)[-1]
    assert summary["train_loss"] == pytest.approx(1.0)
    assert summary["samples_per_second"] == pytest.approx(10 * SAMPLES / 0.4)
    for name in ("train_loss", "samples_per_second", "test_loss", "test_accuracy", "samples"):
        assert last[name] == summary[name], name
    assert summary["seed"] == 7
    line, hint = capsys.readouterr().err.splitlines()[-2:]
    assert hint == f"draw it: mpidl report {reporter.recorder.directory}"
    assert re.search(r"  10%  epoch 10.0 +35925/s +loss 1[ ,]", line)


def test_the_training_loss_is_that_of_the_last_epoch_or_of_the_last_seconds(reporter):
    for second in range(1, 200):  # an epoch takes 100 s, and its loss in each second is the second's number
        reporter.report_due(totals(second, second / 100, second * (second + 1) / 200))
    assert reported(reporter)[-1]["train_loss"] == pytest.approx(185, abs=2)  # over the last 10 s


def test_the_training_loss_of_an_epoch_is_that_of_the_whole(reporter):
    """After two epochs and a half, of which the recent samples have a loss of 9, and the second epoch had one of 3."""
    for second in (1, 2):
        reporter.report_due(totals(second * 20.0, second, 9.0 * second))
    sums = EpochLosses({0: (8.0 * SAMPLES, SAMPLES), 1: (3.0 * SAMPLES, SAMPLES), 2: (4.5 * SAMPLES, SAMPLES / 2)})
    end = replace(totals(50.0, 2.5, 22.5), epochs=sums)
    reporter.evaluated(end, 2.0, {"test_loss": 0.25, "test_accuracy": 0.875})
    reporter.report_due(replace(totals(61.0, 2.75, 24.75), epochs=sums))
    assert reporter.close(end, SIZES, interrupted=True, **END)["train_loss"] == 3.0
    assert [each["train_loss"] for each in reported(reporter)] == [9.0, 9.0, 3.0, 9.0, 3.0]


def test_another_process_goes_on_with_the_files_of_a_run(reporter, capsys):
    """What the first one wrote after its state was kept is written once, and what a death cut short is gone."""
    directory = reporter.recorder.directory
    for epoch in (1, 2, 3):
        reporter.evaluated(totals(epoch * 5.0, epoch, 2.0 * epoch), epoch, {"test_loss": 0.5, "test_accuracy": 0.75})
    reporter.log("checkpoint", 0, "coordinator", step=40)
    reporter.log("failure", 2, "worker 0", host="node7", pid=1234, noticed=1e9, signal=None)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(reporter.state()))

    def go_on(reporter):
        reporter.evaluated(totals(20.0, 4, 7.0), 4, {"test_loss": 0.25, "test_accuracy": 0.5})
        reporter.log("checkpoint", 0, "coordinator", step=80)

    go_on(reporter)
    record_event(directory, "drop", 1, "server 0", worker=1)
    for name in ("metrics", "events"):
        with open(directory / f"{name}.jsonl", "a") as file:
            file.write('{"time": 17')
    reporter.abandon()
    capsys.readouterr()
    config = from_dict(tomllib.loads((directory / "config.toml").read_text()))
    recorder = Recorder(config, token=reporter.recorder.token)
    assert (recorder.directory, recorder.token) == (directory, reporter.recorder.token)
    again = Reporter(place(build(config), 1), recorder)
    again.load(state)
    assert capsys.readouterr().err == ""
    go_on(again)
    again.evaluated(totals(25.0, 5, 8.0), 5, {"test_loss": 0.125, "test_accuracy": 1.0}, final=True)
    summary = again.close(totals(25.0, 5, 8.0), SIZES, interrupted=False, **END)
    assert [record["epoch"] for record in reported(again)] == [1, 2, 3, 4, 5]
    assert [record["train_loss"] for record in reported(again)] == pytest.approx([2, 2, 2, 1, 1])
    events = records(directory / "events.jsonl")
    assert [each.get("step", each["event"]) for each in events] == [40, "failure", 80, "drop"]
    assert (summary["seed"], summary["failures"], summary["test_loss"]) == (7, 1, 0.125)
    assert recorder.read_summary()["test_loss"] == 0.125


def test_deaths_and_recoveries_are_counted_and_shown(reporter, capsys):
    death = {"host": "node7", "pid": 1234, "noticed": 1e9}
    reporter.log("failure", 1, "server 0", **death, signal="SIGKILL")
    reporter.log("recovery", 1, "server 0", by=3, seconds=0.25, lost={"chunks": 1})
    reporter.log("failure", 2, "worker 0", **death, signal=None, code=7)
    reporter.log("handover", 3, "worker 1", by=4, seconds=0.5, lost={})
    first, second, third, fourth = capsys.readouterr().err.splitlines()[-4:]
    assert first == "mpidl: rank 1 (server 0) has died: process 1234 on node7, SIGKILL"
    assert second == "mpidl: rank 1 (server 0) goes on, taken over by the process of rank 3 in 250 ms; lost: 1 chunk"
    assert third == "mpidl: rank 2 (worker 0) has died: process 1234 on node7, exit code 7"
    assert fourth == "mpidl: rank 3 (worker 1) goes on, taken over by the process of rank 4 in 500 ms; lost: nothing"
    summary = reporter.close(totals(1.0, 1, 1.0), SIZES, interrupted=False, **END)
    assert (summary["failures"], summary["recoveries"]) == (2, 1)
    events = records(reporter.recorder.directory / "events.jsonl")
    assert [(each["event"], each["rank"], each["role"]) for each in events] == [
        ("failure", 1, "server 0"), ("recovery", 1, "server 0"), ("failure", 2, "worker 0"),
        ("handover", 3, "worker 1"),
    ]  # fmt: skip


def test_metrics_grow_by_what_is_reported_and_not_by_epochs(reporter):
    """An hour of epochs of 10 ms."""
    for epoch in range(1, 360_001, 10):
        now = totals(epoch / 100, epoch, 0.5 * epoch)
        reporter.report_due(now)
        reporter.evaluated(now, epoch, {"test_loss": 0.5, "test_accuracy": 0.75})
    found = reported(reporter)
    assert len(found) < 5000
    times = [record["time"] for record in found]
    assert max(later - earlier for earlier, later in pairwise(times)) < 10.2


def test_evaluations_of_a_run_of_usual_length_are_all_recorded(reporter):
    for epoch in range(1, 101):
        reporter.evaluated(totals(epoch * 5.0, epoch, 0.5 * epoch), epoch, {"test_loss": 0.5, "test_accuracy": 0.75})
    assert [record["epoch"] for record in reported(reporter)] == list(range(1, 101))


def test_an_epoch_that_was_evaluated_is_over(reporter):
    reporter.report_due(totals(15.0, 2.4, 2.0))
    reporter.evaluated(totals(16.0, 2.5, 2.0), 3, {"test_loss": 0.5, "test_accuracy": 0.75})
    for second in range(17, 40):
        reporter.report_due(totals(second, 2.6 + (second - 17) / 20, 2.0))
    epochs = [record["epoch"] for record in reported(reporter)]
    assert epochs == sorted(epochs)
    assert epochs[1] == 3
