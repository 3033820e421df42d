"""One bad line costs no page: whatever lies in a run's files, all views show the rest, and say what they left out."""

import json
import os
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mpidl.history import open as opened
from mpidl.runs.replay import replay
from mpidl.top.screen import as_text
from mpidl.top.watched import Watched

pytest.importorskip("bokeh")
pytest.importorskip("tensorboardX")
from mpidl.loggers import TensorBoard
from mpidl.page.writing import html

CONFIG = '[run]\nname = "hostile"\nepochs = 3\n[data]\nbatch = 8\n[algorithm]\nname = "downpour"\n'
GOOD = {
    "time": 1.0, "samples": 100, "epoch": 0.1, "train_loss": 0.5, "test_loss": 0.75, "samples_per_second": 100.0,
    "staleness": {"mean": 1.0, "p99": 2, "max": 2}, "staleness_histogram": [3, 1], "pushes": 4, "bytes_pushed": 1e6,
    "iteration": {"number": 1, "objective": 0.5}, "shares": {"computing": 0.5, "rest": 0.5}, "unix_time": 1.7e9,
}  # fmt: skip
EVENT = {"time": 1.7e9, "event": "checkpoint", "rank": 0, "role": "coordinator", "step": 7}
HUGE = "1" + "0" * 400

#: Lines that are no record, and lines that are no event.
NO_RECORDS = [
    "[]", "7", '"x"', "null", "{", "\0\0", "[" * 9999, "{}", '{"time": 1}', f'{{"samples": {HUGE}, "time": 1}}',
    *(
        json.dumps(GOOD | each)
        for each in (
            {"samples": -5}, {"samples": "many"}, {"samples": 1e300}, {"time": -1e308}, {"time": [1]},
            {"unix_time": "now"}, {"train_loss": [1.0]}, {"test_loss": [[1]]}, {"validation_loss": "x"},
            {"train_loss": 1e308}, {"train_loss": -1e308}, {"train_loss": 10**400}, {"epoch": 10**30},
            {"staleness_histogram": [3, -1]}, {"staleness_histogram": [[1]]}, {"staleness_histogram": 5},
            {"staleness": 3}, {"staleness": {"mean": 1e308}}, {"iteration": 4}, {"iteration": {"objective": [1]}},
            {"shares": [1]}, {"shares": {"computing": "all"}},
        )
    ),
]  # fmt: skip
NO_EVENTS = [
    "[]", "7", "{", "{}", '{"time": 1.7e9, "rank": 0, "role": "coordinator"}',
    *(
        json.dumps(EVENT | each)
        for each in (
            {"event": ["checkpoint"]}, {"event": None}, {"event": {}}, {"rank": "zero"}, {"rank": [0]}, {"rank": 1.5},
            {"rank": -3}, {"rank": 10**30}, {"role": ["worker"]}, {"time": 1e308}, {"time": "now"}, {"step": 10**400},
            {"virtual_time": "x"}, {"virtual_time": 1e308}, {"lost": {"pushes": 10**400}},
        )
    ),
]  # fmt: skip


class Notes(list):
    """A logger that keeps the steps of the records that it gets."""

    def __getattr__(self, name):
        return lambda *given: self.append(given[0]) if name == "record" else None


def made(run, records, events, **others):
    run.mkdir()
    for name, content in {"config.toml": CONFIG, **others}.items():
        (run / name).write_text(content)
    for name, lines in (("metrics.jsonl", records), ("events.jsonl", events)):
        (run / name).write_text("".join(f"{line}\n" for line in lines))
    return run


def views(run, out):
    """Return what each view shows of a run: the page, a notebook, the screen, and the files of TensorBoard."""
    replay(opened(run), TensorBoard(out))
    assert any(out.iterdir())
    return html([opened(run)]), opened(run)._repr_html_(), as_text(Watched(run), 200)


@pytest.mark.parametrize(
    ("file", "good", "bad"), [("metrics.jsonl", GOOD, NO_RECORDS), ("events.jsonl", EVENT, NO_EVENTS)]
)
def test_lines_that_are_none_are_counted_and_left_out(tmp_path, capsys, file, good, bad):
    run = made(tmp_path / "run", [json.dumps(GOOD)] * 2, [json.dumps(EVENT)] * 2)
    lines = [json.dumps(good), *bad, json.dumps(good)]
    (run / file).write_text("\n".join([*lines, "", '{"a line that is being writ']))
    found = opened(run)
    assert (found.metrics.rows, found.events.rows) == (2, 2)
    assert found.metrics["train_loss"].tolist() == [0.5, 0.5]
    assert found.events["event"].tolist() == ["checkpoint"] * 2
    kind = "record" if good is GOOD else "event"
    note = f"{file}: {len(bad)} lines that are no {kind}s are left out"
    assert found.notes == [note]
    assert all(note in shown for shown in views(run, tmp_path / "out"))
    assert capsys.readouterr().err == f"mpidl: {run}: {note}\n"
    # Each of them alone, too.
    for line in bad:
        (run / file).write_text(f"{json.dumps(good)}\n{line}\n")
        assert opened(run).notes == [f"{file}: 1 line that is no {kind} is left out"], line


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.jsonl", "summary.json", "status.json"])
def test_a_linked_file_is_left_out(tmp_path, capsys, file):
    run = made(tmp_path / "run", [json.dumps(GOOD)], [json.dumps(EVENT)])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("{}\n")
    (run / file).unlink(missing_ok=True)
    os.symlink(elsewhere, run / file)
    note = f"{file}: a link, expected a regular file, left out"
    assert all(note in shown for shown in views(run, tmp_path / "out"))


def test_numbers_of_a_summary_and_a_status_that_cannot_be_drawn(tmp_path):
    rank = f'{{"rank": 0, "role": "worker 0", "samples_per_second": {HUGE}, "memory": -1e308, "queue": 1e308}}'
    status = f'{{"time": {HUGE}, "record": {{"samples": {HUGE}, "epoch": 1e308}}, "ranks": [{rank}]}}'
    run = made(tmp_path / "run", [json.dumps(GOOD)], [json.dumps(EVENT)], **{"status.json": status})
    (run / "summary.json").write_text(f'{{"seconds": {HUGE}, "test_accuracy": -1e308, "failures": 1e308}}')
    notes = [f"{name}.json: numbers beyond 1e+300 are left out" for name in ("summary", "status")]
    for shown in views(run, tmp_path / "out"):
        assert all(note in shown for note in notes)
        assert "finished" in shown
    config = CONFIG.replace("epochs = 3", f"epochs = {HUGE}") + f"[server]\nrate = {HUGE}\nother = -inf\n"
    (run / "config.toml").write_text(config)
    (run / "summary.json").unlink()
    views(run, tmp_path / "again")


def test_one_odd_rank_costs_no_other_its_bar(tmp_path):
    shares = {"computing": 0.5, "rest": 0.5}
    ranks = [{"rank": 0, "role": ["x"]}, "x", {"rank": 1, "role": "worker 0", "samples": 5, "shares": shares}]
    run = made(tmp_path / "run", [], [], **{"status.json": json.dumps({"ranks": ranks})})
    assert "worker 0 (rank 1)" in html([opened(run)])


numbers = st.integers() | st.floats(allow_nan=False) | st.sampled_from([10**400, -(10**400), 1e308, -1e308, 1e300])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def changed(good, *names):
    """Objects in which some items are anything."""
    return st.dictionaries(st.sampled_from([*good, *names]), values | numbers, max_size=3).map(good.__or__)


DEATH = EVENT | {"event": "failure", "host": "h", "pid": 1, "signal": "SIGKILL"}
TAKEN = EVENT | {"event": "recovery", "by": 1, "seconds": 0.1, "lost": {"pushes": 1}}
RANK = {"rank": 0, "role": "worker 0", "samples": 3, "shares": {"computing": 0.5}, "samples_per_second": 1.0}
SUMMARY = {"seconds": 1.0, "samples": 3, "hosts": {"h": 2}, "stopped": "x", "failures": 1, "algorithm": "downpour"}
events = st.sampled_from([EVENT, DEATH, TAKEN, EVENT | {"event": "resume", "samples": 5}]).flatmap(changed)


@settings(max_examples=8, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))
@given(
    st.lists(changed(GOOD, "server_load", "test_x", "owner_samples"), max_size=4),
    st.lists(events, max_size=4),
    st.none() | changed(SUMMARY, "interrupted", "virtual", "version", "date", "epochs"),
    st.lists(changed(RANK, "state", "host", "process", "memory") | values, max_size=3),
)
def test_any_content_of_the_files(tmp_path_factory, records, lines, summary, ranks):
    place = tmp_path_factory.mktemp("any")
    status = {"time": 1.7e9, "record": (records or [GOOD])[-1], "ranks": ranks}
    others = {"status.json": json.dumps(status), "summary.json": json.dumps(summary)}
    good = [json.dumps(GOOD | {"samples": 10 * n, "time": n, "unix_time": 1.7e9 + n}) for n in range(3)]
    run = made(place / "run", [*good, *map(json.dumps, records)], map(json.dumps, lines), **others)
    page, *_ = views(run, place / "out")
    assert opened(run).metrics.rows + opened(run).metrics.skipped == 3 + len(records)
    assert re.search(r"<h3 title=.Loss", page)
