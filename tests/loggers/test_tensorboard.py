"""What TensorBoard finds of a run, written by it or converted from its files."""

import json
import re
import sys

import numpy as np
import pytest
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

import mpidl
from event_files import events, scalars
from full_disk import full_disk
from mpidl.cli import main
from mpidl.errors import UsageError
from mpidl.loggers import TensorBoard
from mpidl.loggers.calls import Loggers

RECORD = {"samples": 100, "time": 2.0, "unix_time": 1e9, "epoch": 0.5, "train_loss": 0.25, "test_loss": None}


def train(path, loggers=("tensorboard",), **keywords):
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    given = {"epochs": 1, "batch": 64, "device": "cpu", "report": 1e-3, "dir": path} | keywords
    return mpidl.train(network, mpidl.Digits(), loggers=loggers, **given)


def hparams(directory):
    """Return the hparams of the sessions of a directory, and the number of those that are over."""
    found = [
        HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in events(directory)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    ]
    given = [
        {key: getattr(value, value.WhichOneof("kind")) for key, value in each.session_start_info.hparams.items()}
        for each in found
        if each.HasField("session_start_info")
    ]
    return given, sum(each.HasField("session_end_info") for each in found)


def test_the_events_of_a_run(tmp_path):
    summary = train(tmp_path)
    directory, records = tmp_path / "run" / "tensorboard", tmp_path / "run" / "metrics.jsonl"
    expected = [json.loads(line) for line in records.read_text().splitlines()]
    found = scalars(directory)
    for tag in ("train_loss", "test_accuracy", "epoch", "staleness.mean", "staleness.p99"):
        first, _, second = tag.partition(".")
        values = [(each["samples"], each[first][second] if second else each[first]) for each in expected]
        values = [(step, value) for step, value in values if value is not None]
        steps, numbers = zip(*found[tag.replace(".", "/")], strict=True)
        assert steps == tuple(step for step, _ in values)
        assert numbers == pytest.approx([value for _, value in values])
    assert not {"samples", "time", "unix_time"} & found.keys()
    assert found["summary/test_loss"] == [(1437, pytest.approx(summary["test_loss"]))]
    walls = [event.wall_time for event in events(directory) if any(v.tag == "train_loss" for v in event.summary.value)]
    assert walls == [each["unix_time"] for each in expected]
    texts = [v.tensor.string_val[0].decode() for e in events(directory) for v in e.summary.value if "text" in v.tag]
    assert "- checkpoint: rank 0 (coordinator), step 0" in "\n".join(texts)
    (given,), ended = hparams(directory)
    assert (given["data.batch"], given["run.deterministic"], given["algorithm.name"]) == (64, False, "downpour")
    assert json.loads(given["run.loggers"]) == ["tensorboard"]
    assert ended == 1


def test_a_resumed_run_has_no_point_twice(tmp_path):
    train(tmp_path, checkpoint_every=1e-3, keep=1)
    run = tmp_path / "run"
    (run / "summary.json").unlink()  # as if the last checkpoint were older than the last records
    board, late = run / "tensorboard", TensorBoard()
    late.start(run, {}, 0)
    late.record(RECORD | {"samples": 2000})
    late.finish(None)
    train(tmp_path, epochs=2, resume=True)
    (first, second, third), ended = hparams(board)
    assert (first["run.epochs"], second, third["run.epochs"], ended) == (1, {}, 2, 2)
    steps = [step for step, _ in scalars(board)["train_loss"]]
    assert steps == sorted(steps)
    assert 2000 not in steps
    assert len({*steps}) >= len(steps) - 1, "the point at which it goes on may be there twice"


def test_staleness_is_that_since_the_last_record(tmp_path):
    board = TensorBoard(tmp_path / "board")
    board.start(tmp_path, {}, 0)
    for samples, counts in ((1, [0]), (2, [3, 1]), (3, [3, 1]), (4, [4, 3, 0, 5])):
        board.record(RECORD | {"samples": samples, "staleness_histogram": counts})
    board.finish(None)
    found = {
        event.step: v.histo for event in events(tmp_path / "board") for v in event.summary.value if v.tag == "staleness"
    }
    assert {step: list(each.bucket) for step, each in found.items()} == {2: [3, 1], 4: [1, 2, 0, 5]}
    last = found[4]
    assert (last.num, last.sum, last.sum_squares) == (8, 17, 47)
    assert (last.min, last.max, *last.bucket_limit) == (-0.5, 3.5, 0.5, 1.5, 2.5, 3.5)


def test_names_of_any_kind(tmp_path):
    board, name = TensorBoard(tmp_path / "board"), 'test_<script>"\x00\n' + "x" * 300
    board.start(tmp_path, {"run": {"name": name}}, 0)
    board.record(RECORD | {name: 1.0, "shares": {}})
    board.event({"time": 1.0, "event": name, "rank": None, "role": name})
    board.finish({"run_dir": name, "virtual": True, "seed": 1 << 63})
    assert re.fullmatch(r"test__script____x{300}", next(tag for tag in scalars(tmp_path / "board") if "xxx" in tag))
    assert hparams(tmp_path / "board")[0][0]["run.name"] == name


def test_a_full_disk_ends_no_run(tmp_path):
    said, loggers = [], Loggers(["tensorboard"])
    loggers.tell = said.append
    loggers.start(tmp_path, {}, 0, strict=True)
    values = {f"name-{number}": 0.5 for number in range(2000)}
    with full_disk(5000):
        loggers.record(RECORD | values)
        loggers.record(RECORD | values)
    loggers.record(RECORD | {"samples": 200})
    loggers.finish({"seconds": 1.0})
    assert "loggers: TensorBoard raised OSError" in said[0]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert [each.step for each in events(tmp_path / "tensorboard") if each.summary.value][-2:] == [200, 200]


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="tensorboard: a link, expected a directory"):
        TensorBoard().start(tmp_path, {}, 0)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboardX"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    line = r"^tensorboardX is not installed, expected `pip install 'mpidl\[tensorboard\]'`$"
    with pytest.raises(UsageError, match=line):
        train(tmp_path)
    assert not list(tmp_path.iterdir())
    assert np.isfinite(train(tmp_path, loggers=())["test_loss"])


def test_what_a_killed_process_has_written_is_there(tmp_path):
    board = TensorBoard()
    board.start(tmp_path, {}, 0)
    board.record(RECORD)
    assert scalars(tmp_path / "tensorboard")["train_loss"] == [(100, 0.25)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was killed after a checkpoint, and resumed."""
    path = tmp_path_factory.mktemp("runs")
    train(path, checkpoint_every=1e-3)
    (path / "run" / "summary.json").unlink()
    train(path, epochs=2, resume=True)
    return path / "run"


def histograms(directory):
    return [(e.step, list(v.histo.bucket)) for e in events(directory) for v in e.summary.value if v.HasField("histo")]


def times(directory):
    return [event.wall_time for event in events(directory) if any(v.tag == "epoch" for v in event.summary.value)]


def texts(directory):
    found = [v.tensor.string_val[0] for e in events(directory) for v in e.summary.value if v.HasField("tensor")]
    return b"\n".join(found).splitlines()


def test_the_same_events(run, tmp_path, capsys):
    assert main(["report", str(run), "--to", "tensorboard", "-o", str(tmp_path / "board")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'board'}\n"
    converted, written = scalars(tmp_path / "board"), scalars(run / "tensorboard")
    finals = {tag: written[tag][-1:] for tag in written if tag.startswith("summary/")}
    # Of the place at which it went on, the run itself has kept what it then did again, too.
    for tag, points in (written | finals).items():
        assert set(converted[tag]) <= set(points)
        assert {point for point in points if point[0] != 1437} <= set(converted[tag])
    assert texts(tmp_path / "board") == texts(run / "tensorboard")
    for of in (histograms, times):
        kept, all_of_it = of(tmp_path / "board"), of(run / "tensorboard")
        assert len(kept) >= len(all_of_it) - 2
        assert all(each in all_of_it for each in kept)
    steps = [step for step, _ in converted["epoch"]]
    assert steps == sorted(steps)
    assert max(steps) == 2 * 1437


def test_several_runs_get_a_directory_each(run, tmp_path, capsys):
    other = tmp_path / "again" / "run"
    other.mkdir(parents=True)
    for name in ("config.toml", "metrics.jsonl", "events.jsonl"):  # killed
        (other / name).write_bytes((run / name).read_bytes())
    assert main(["report", str(run), str(other), "--to", "tensorboard", "-o", str(tmp_path / "out")]) == 0
    first, second = (scalars(tmp_path / "out" / name) for name in ("run", "run-2"))
    assert first["train_loss"] == second["train_loss"]
    assert "summary/test_loss" in first
    assert "summary/test_loss" not in second
    assert main(["report", str(other), "--to", "tensorboard"]) == 0
    assert scalars(other / "tensorboard") == second
    capsys.readouterr()
    assert main(["report", str(other), "--to", "tensorboard"]) == 2
    line = f"mpidl: {other / 'tensorboard'}: exists and isn't an empty directory, expected another one by -o\n"
    assert capsys.readouterr().err == line


def test_lines_of_other_kinds_are_left_out(run, tmp_path, capsys):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    odd = ["{}", "[1]", '{"samples": "x", "time": 1}', '{"samples": 1e400, "time": 1.0}', '{"samples": 5, "time": {}}']
    (tmp_path / "config.toml").write_text("[run]\nday = 2026-01-01\n")
    (tmp_path / "metrics.jsonl").write_text("\n".join([*odd, *map(json.dumps, lines), "", '{"samples": 7']))
    (tmp_path / "events.jsonl").write_text('{"time": 1, "event": "resume"}\n{"time": "x"}\n{}\n[]\n{"time": 2}\n')
    assert main(["report", str(tmp_path), "--to", "tensorboard"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"mpidl: {tmp_path}: events.jsonl: 4 lines that are no events are left out",
        f"mpidl: {tmp_path}: metrics.jsonl: 5 lines that are no records are left out",
    ]
    assert scalars(tmp_path / "tensorboard")["train_loss"][-1][0] == lines[-1]["samples"]


def test_what_came_after_the_checkpoint_is_void(tmp_path):
    (tmp_path / "config.toml").write_text("")
    records = [{"samples": n, "time": n, "unix_time": n, "train_loss": n} for n in (100, 300, 400)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (tmp_path / "events.jsonl").write_text('{"time": 350, "event": "resume", "samples": 100}\n')
    assert main(["report", str(tmp_path), "--to", "tensorboard"]) == 0
    assert scalars(tmp_path / "tensorboard")["train_loss"] == [(100, 100), (400, 400)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--trace", "x", "--to", "tensorboard"], "--trace: names the only file that is written, leave --to out"),
        (["--to", "tensorbord"], "--to: unknown name 'tensorbord', did you mean 'tensorboard'?"),
        (
            ["--to", "tensorboard", "-o", "/proc/none/board"],
            "/proc/none/board: can't be written (No such file or directory)",
        ),
    ],
)
def test_what_cannot_be_converted(run, capsys, arguments, text):
    assert main(["report", str(run), *arguments]) == 2
    assert capsys.readouterr().err == f"mpidl: {text}\n"
