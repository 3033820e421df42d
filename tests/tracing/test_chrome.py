"""Timelines in files, and in Chrome's format."""

import gzip
import json
import math
from collections import Counter
from dataclasses import replace

import h5py
import numpy as np
import pytest

from mpidl.errors import MpidlError, UsageError
from mpidl.tracing import RankSpans, read
from mpidl.tracing.chrome import write as write_chrome
from mpidl.tracing.files import write
from timelines import check, exchange, spans

#: The fields of each phase of an event, of which the first ones are required.
FIELDS = {
    "M": ("ph", "name", "pid", "args", "tid"),
    "X": ("ph", "name", "cat", "ts", "dur", "tdur", "pid", "tid", "args"),
    "s": ("ph", "name", "cat", "id", "ts", "pid", "tid"),
    "f": ("ph", "name", "cat", "id", "bp", "ts", "pid", "tid"),
    "C": ("ph", "name", "ts", "pid", "tid", "args"),
}
TYPES = {
    "ph": str, "name": str, "cat": str, "bp": str, "pid": int, "tid": int, "id": int, "args": dict,
    "ts": float, "dur": float, "tdur": float,
}  # fmt: skip


def events(file):
    """Return the events of a trace, which is as the format says."""
    with gzip.open(file) as content:
        trace = json.load(content)
    assert trace.keys() == {"displayTimeUnit", "traceEvents"}
    found = trace["traceEvents"]
    for event in found:
        fields = FIELDS[event["ph"]]
        assert set(fields) - {"tid"} <= event.keys() <= set(fields), event
        for name, value in event.items():
            assert type(value) in ((int, float) if TYPES[name] is float else (TYPES[name],)), event
            assert TYPES[name] is not float or (math.isfinite(value) and value >= 0), event
    times = [event["ts"] for event in found if event["ph"] != "M"]
    assert times == sorted(times)
    assert all(type(value) is int for event in found if event["ph"] == "C" for value in event["args"].values())
    return found


def enclosing(found, event):
    """Return the spans that an end of an arrow lies in."""
    return [
        each for each in found
        if each["ph"] == "X" and (each["pid"], each["tid"]) == (event["pid"], event["tid"])
        and each["ts"] <= event["ts"] <= each["ts"] + each["dur"]
    ]  # fmt: skip


def test_a_trace_has_tracks_spans_arrows_and_counters(tmp_path):
    write_chrome({"measured": exchange(), "predicted": exchange("node 0", "node 0", begin=7.0)}, tmp_path / "t.json.gz")
    found = events(tmp_path / "t.json.gz")
    names = {(each["name"], each["args"].get("name")) for each in found if each["ph"] == "M"}
    assert {("process_name", "measured: a"), ("process_name", "measured: b")} <= names
    assert {("process_name", "predicted: node 0"), ("thread_name", "worker 0 (rank 2, a)")} <= names
    assert len({each["pid"] for each in found}) == 3
    assert Counter(each["name"] for each in found if each["ph"] == "X") == {
        "gradient": 2, "push": 4, "wait": 2, "fetch": 2, "apply": 6,
    }  # fmt: skip
    # Runs begin together.
    assert [each["ts"] for each in found if each["name"] == "gradient"] == [0, 0]
    (gradient,) = {(each["dur"], each["tdur"]) for each in found if each["name"] == "gradient"}
    assert gradient == (3e6, 3e6)

    starts, ends = ({each["id"]: each for each in found if each["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * 3
    for number, start in starts.items():
        end = ends[number]
        assert end["ts"] >= start["ts"]
        assert end["bp"] == "e"
        expected = ("push", "apply") if start["name"] == "push" else ("apply", "fetch")
        kinds = [{each["name"] for each in enclosing(found, event)} for event in (start, end)]
        assert expected[0] in kinds[0]
        assert expected[1] in kinds[1]

    counters = [each for each in found if each["ph"] == "C" and each["pid"] == 1]
    shown = {
        name: [each["args"]["value"] for each in counters if each["name"] == name]
        for name in ("staleness, server 0", "queue, server 0")
    }
    assert shown == {"staleness, server 0": [0, 1], "queue, server 0": [1, 0, 1, 0]}


def test_a_worker_that_has_no_spans_has_a_track(tmp_path):
    write_chrome({"run": [RankSpans(0, "coordinator", "a", spans())]}, tmp_path / "t.json.gz")
    assert [each["ph"] for each in events(tmp_path / "t.json.gz")] == ["M", "M", "M"]
    write_chrome({"run": exchange()}, tmp_path / "plain.json")
    assert len(json.loads((tmp_path / "plain.json").read_text())["traceEvents"]) > 10


def test_files_keep_timelines(tmp_path):
    server, worker = exchange()
    for each in (worker, replace(server, dropped=7)):
        write(tmp_path, each)
    found = read(tmp_path)
    assert [each.rank for each in found] == [1, 2]
    assert (found[0].role, found[0].host, found[0].error, found[0].dropped) == ("server 0", "b", 1e-5, 7)
    assert (found[1].spans == worker.spans).all()
    assert check(found) == 4


def test_a_rank_that_another_process_has_gone_on_with_has_one_timeline(tmp_path):
    server, _ = exchange()
    later = spans(("recover", 110, 111, {}), ("apply", 112, 113, {"push": 2, "pusher": 2, "shard": 0}))
    write(tmp_path, server)
    write(tmp_path, replace(server, spans=later), process=0)
    (found,) = read(tmp_path)
    assert len(found.spans) == 5
    assert (np.diff(found.spans["start"]) > 0).all()


@pytest.mark.parametrize("wrong", ["text", "dtype", "kind", "time", "link"])
def test_what_is_no_timeline_is_said_in_a_line(tmp_path, wrong):
    server, _ = exchange()
    if wrong == "kind":
        server.spans["kind"][0] = 99
    if wrong == "time":
        server.spans["end"][1] = np.nan
    write(tmp_path, server)
    file = tmp_path / "trace" / "1.h5"
    if wrong == "text":
        file.write_text("no HDF5")
    elif wrong in ("dtype", "link"):
        with h5py.File(file, "a") as content:
            del content["spans"]
            content["spans"] = np.zeros(3) if wrong == "dtype" else h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(MpidlError, match=r"1\.h5: not the timeline of a rank \(.+\)$"):
        read(tmp_path)


def test_a_run_without_a_timeline_says_how_to_keep_one(tmp_path):
    with pytest.raises(UsageError, match=r"no timeline, expected .* run\.trace = true"):
        read(tmp_path)
