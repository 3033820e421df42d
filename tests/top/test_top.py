"""The screen of `mpidl top`, in any size, from the files of runs alone."""

import io
import json
import os
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.report.text import in_words

pytest.importorskip("rich")
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen

from mpidl.top import watched as room
from mpidl.top.screen import as_text
from mpidl.top.view import curve, view
from mpidl.top.watched import TAKEOVER, Watched, find

CONFIG = "[run]\nepochs = 10\n"


def worker(rank, **given):
    shares = {"computing": 0.5, "pushing": 0.1, "fetching": 0.1, "waiting": 0.2, "rest": 0.1}
    found = {"rank": rank, "role": f"worker {rank}", "host": "node1", "process": rank, "state": "working"}
    return found | {"samples": 10, "samples_per_second": 100.0 + rank, "shares": shares, "memory": 2e8} | given


RECORD = {"time": 75.0, "samples": 1000, "epoch": 2.5, "train_loss": 0.5, "samples_per_second": 200.0}


@pytest.fixture
def run(tmp_path):
    return made(tmp_path / "run")


def made(directory, config=CONFIG):
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text(config)
    return directory


def write(directory, name, *records):
    with (directory / name).open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in records)


def status(directory, *ranks, **given):
    content = {"time": time.time(), "pid": 1, "host": "node1", "record": RECORD, "ranks": ranks} | given
    (directory / "status.json").write_text(json.dumps(content))


def screen(watched, width=80, height=24):
    """Return the lines that a terminal of that size shows."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    shown = console.render_lines(Screen(view(watched, width, height)))
    lines = ["".join(segment.text for segment in each) for each in shown]
    assert len(lines) == height
    assert {cell_len(each) for each in lines} == {width}
    return [each.rstrip() for each in lines]


@pytest.fixture
def locked(monkeypatch):
    """Say whether the runs are in use."""
    answer = SimpleNamespace(used=True)
    monkeypatch.setattr("mpidl.history.run.is_locked", lambda run: answer.used)
    return answer


def test_a_running_run(run, locked):
    coordinator = {"rank": 0, "role": "coordinator", "host": "node1", "process": 0, "state": "working", "memory": None}
    server = coordinator | {"rank": 1, "role": "server 0", "process": 1, "staleness": 1.25, "queue": 3}
    status(run, coordinator, server | {"shares": {"computing": 0.25, "rest": 0.75}}, worker(2), worker(3, state="dead"))
    write(run, "metrics.jsonl", *({"samples": n, "train_loss": 100 - n} for n in range(100)))
    write(run, "events.jsonl", {"time": 0, "event": "checkpoint", "role": "coordinator", "step": 7})
    lines = screen(Watched(run))
    assert re.match(r"(\.\.\.)?[/\w-]+run  running  1:15 of training$", lines[0])
    assert lines[1] == "epoch 2.5 of 10, 0:15 left  200 samples/s  train loss 0.5"
    assert lines[2] == "train loss 100 to 1, over 99 samples"
    table = [line.split() for line in lines if re.match(r"\d  ", line)]
    assert table == [
        ["0", "coordinator", "node1", "working", *"-----"],
        ["1", "server", "0", "node1", "working", "-", "25%", "1.2", "3", "-"],
        ["2", "worker", "2", "node1", "working", "102", "50%", "-", "-", "200", "MB"],
        ["3", "worker", "3", "node1", "dead", "103", "50%", "-", "-", "200", "MB"],
    ]
    assert lines[-2].endswith("checkpoint: step 7")
    assert lines[-1].strip() == "q quits"
    (names,) = [" ".join(line.split()) for line in screen(Watched(run), 200, 50) if "samples/s  comp" in line]
    assert names == "rank role host state samples/s computing pushing fetching waiting rest staleness queue memory"


def test_what_is_written_between_two_looks(run, locked):
    watched = Watched(run)
    assert "no figures yet" in screen(watched)[1]
    write(run, "metrics.jsonl", {"samples": 1, "train_loss": 4.0})
    status(run, worker(1))
    watched.look()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"samples": 2, "train_loss": 3.0}\n{"samples": 3, "train')
    watched.look()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('_loss": 2.0}\n{"samples": 2.5, "train_loss": 1.0}\n')
    watched.look()
    assert watched.curve == ("train_loss", [(1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (2.5, 1.0)])
    (run / "metrics.jsonl").write_text('{"samples": 9, "iteration": {"objective": 5}}\n')
    watched.look()
    assert watched.curve == ("iteration.objective", [(9.0, 5)])
    # A look in the middle of a rename finds none.
    (run / "status.json").unlink()
    watched.look()
    assert "worker 1" in "\n".join(screen(watched))


def test_a_run_that_dies_while_it_is_watched(run, locked, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
    status(run, worker(1), worker(2), time=0)
    (run / "checkpoints" / "40").mkdir(parents=True)
    watched = Watched(run)
    now[0] += 8
    watched.look()
    assert "no news for 8 s" in screen(watched)[0]
    locked.used = False
    watched.look()
    assert watched.state == "running", "another process may be taking it over"
    now[0] += TAKEOVER + 1
    watched.look()
    text = "\n".join(screen(watched))
    assert re.search(r"DIED, last heard of at \d\d:\d\d:\d\d: no process uses it", text)
    assert f"step 40 is saved; continue with `mpidl train --resume {run} -n 2`" in as_text(watched, 300)
    locked.used = True
    watched.look()
    assert watched.state == "running"


def test_how_runs_have_ended(run, locked):
    locked.used = False
    assert "KILLED: no process uses it any more" in as_text(Watched(run), 200)
    assert "no checkpoint was saved: start it again" in as_text(Watched(run), 200)
    write(run, "events.jsonl", {"time": 0, "event": "failure", "rank": 2, "role": "worker 0", "cause": "loss is NaN"})
    assert re.search(r"FAILED, last heard .*: rank 2 \(worker 0\) failed: loss is NaN", as_text(Watched(run), 200))
    (run / "checkpoints" / "3").mkdir(parents=True)
    (run / "script.json").touch()
    write(run, "summary.json", RECORD | {"interrupted": True, "seconds": 75.0})
    assert "continue with `mpidl run --resume" in as_text(Watched(run), 200)
    (run / "summary.json").unlink()
    write(run, "summary.json", {"seconds": 61, "epochs": 10.0, "test_loss": 0.25, "failures": 1, "recoveries": 1})
    text = as_text(Watched(run), 200)
    assert "finished  1:01 of training" in text
    assert "epoch 10.0 of 10  test loss 0.25" in text
    assert "done, 1 failures, 1 recoveries" in text


def test_the_slowest_of_a_thousand_ranks_come_first(run, locked, calls):
    servers = [
        {"rank": n, "role": f"server {n}", "process": n, "state": "working", "shares": {"computing": n / 100}}
        for n in range(100)
    ]
    workers = [worker(n, samples_per_second=2000.0 - n) for n in range(100, 1000)]
    workers[7]["state"] = "dead"
    status(run, *servers, *workers)
    lines = screen(Watched(run))
    (more,) = [number for number, line in enumerate(lines) if "more ranks" in line]
    ranks = [int(found[1]) for line in lines if (found := re.match(r"(\d+) +(worker|server)", line))]
    assert ranks[0] == 107
    assert ranks[1] == 99, "the busiest server"
    slow = [rank for rank in ranks[1:] if rank >= 100]
    assert slow == list(range(999, 999 - len(slow), -1))
    assert len(slow) >= 5
    assert lines[more].startswith(f"and {1000 - len(ranks)} more ranks, the fastest at 1,900 samples/s")
    text = as_text(Watched(run), 80)
    assert all(f"worker {n} " in text for n in range(100, 1000)), "a text has all of them"
    assert calls(lambda: screen(Watched(run))) < calls(lambda: as_text(Watched(run), 80)) / 10


HOSTILE = "[bold]x[/bold]\x1b[2J\x07\u202e:smile: " + "y" * 300


def test_hostile_names(tmp_path, locked):
    run = made(tmp_path / "[red]\x1b]0;z\x07")
    ranks = [
        worker(1, role=HOSTILE, host=HOSTILE),
        worker(2, state="[blink]"),
        worker(3, process=None) | {"rank": "\n"},
    ]
    (run / "status.json").write_bytes(
        json.dumps({"record": RECORD | {f"{HOSTILE}_loss": 1.0}, "ranks": ranks}).encode("ascii")
    )
    write(run, "events.jsonl", {"time": 1e300, "event": HOSTILE, "role": "[/]", HOSTILE: HOSTILE})
    for text in (*screen(Watched(run)), *screen(Watched(run), 200, 50), *as_text(Watched(run), 80).split("\n")):
        assert text.isprintable()
        assert "y" * 80 not in text or len(text) > 80
    shown = as_text(Watched(run), 200)
    assert r"[bold]x[/bold]\x1b[2J" in shown
    assert ":smile:" in shown
    assert "[blink]" in shown


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FIELDS = ("rank", "role", "host", "process", "state", "samples_per_second", "shares", "staleness", "queue", "memory")


@settings(phases=(Phase.explicit, Phase.generate))
@given(
    st.lists(st.dictionaries(st.sampled_from(FIELDS), json_values), max_size=3),
    st.dictionaries(st.sampled_from([*RECORD, "staleness", "iteration", "x_loss", "interrupted"]), json_values),
    st.lists(
        st.dictionaries(st.sampled_from(["time", "event", "cause", "role", "lost", "by"]), json_values), max_size=3
    ),
    st.integers(20, 220),
    st.integers(3, 60),
)
def test_any_content_of_the_files(tmp_path_factory, ranks, record, events, width, height):
    run = made(tmp_path_factory.mktemp("any") / "run")
    (run / "status.json").write_text(json.dumps({"time": 0, "record": record, "ranks": ranks}))
    write(run, "events.jsonl", *events)
    write(run, "metrics.jsonl", record)
    screen(Watched(run), width, height)
    assert as_text(Watched(run), width)


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([1, 10, 100, 1000], "▁▂▃▄▅▆▇█"),
        ([3, 3], "▄▄▄▄▄▄▄▄"),
        ([float("nan"), 1, float("inf"), 2], "▁▂▃▄▅▆▇█"),
        ([-1e308, 1e308], "▁▂▃▄▅▆▇█"),
        ([8, 1], "█▇▆▅▄▃▂▁"),
        ([], ""),
    ],
)
def test_curves(values, drawn):
    assert curve(list(enumerate(values)), 8, 1) == [drawn]
    assert curve([(0, 0), (1, 7)], 2, 2) == [" █", "▁█"]
    assert curve([(0, 0), (1, 7)], 2, 1, plain=True) == [".@"]


def test_events_as_lines():
    found = {"time": 0, "event": "failure", "rank": 2, "role": "worker 0", "host": "h1", "pid": 7, "signal": "SIGKILL"}
    assert in_words(found) == "rank 2 (worker 0) has died: process 7 on h1, SIGKILL"
    assert in_words({"event": "failure", "role": "worker 0", "portions": [1, 2]}) == "failure (worker 0): portions 1, 2"
    recovery = {"event": "recovery", "rank": 2, "role": "worker 0", "by": 3, "seconds": 0.5, "lost": {}}
    assert in_words(recovery).startswith("rank 2 (worker 0) goes on, taken over by the process of rank 3 in 500 ms")


def test_the_newest_run_is_watched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="runs: no directory, expected the directory of a run"):
        find(None)
    old, new, virtual = (made(tmp_path / "runs" / name) for name in ("old", "new", "virtual/simulated"))
    for age, directory in enumerate((virtual, new, old)):
        os.utime(directory / "config.toml", (1e9, 1e9 - age))
    assert find(None).name == "simulated"
    (old / "status.json").touch()
    assert find(None).name == "old"
    assert find(tmp_path / "runs").name == "old"
    assert find(new) == new
    with pytest.raises(UsageError, match="expected the directory of a run"):
        find(tmp_path)
