"""`mpidl report RUN --to tensorboard` gives what the run itself would have written."""

import json

import pytest

import mpidl
from event_files import events, scalars
from mpidl.cli import main


def train(path, **keywords):
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    given = {"batch": 64, "device": "cpu", "report": 1e-3, "dir": path, "loggers": ["tensorboard"]} | keywords
    mpidl.train(network, mpidl.Digits(), **given)
    return path / given.get("name", "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was killed after a checkpoint, and resumed."""
    path = tmp_path_factory.mktemp("runs")
    run = train(path, epochs=1, checkpoint_every=1e-3)
    (run / "summary.json").unlink()
    return train(path, epochs=2, resume=True)


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


def test_runs_of_earlier_versions_and_lines_of_other_kinds(run, tmp_path, capsys):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    odd = ["{}", "[1]", '{"samples": "x", "time": 1}', '{"samples": 1e400, "time": 1.0}', '{"samples": 5, "time": {}}']
    earlier = [json.dumps({key: value for key, value in line.items() if key != "unix_time"}) for line in lines]
    again = json.dumps({**lines[0], "samples": 100, "unix_time": lines[-1]["unix_time"] + 1})
    (tmp_path / "config.toml").write_text("[run]\nday = 2026-01-01\n")
    (tmp_path / "metrics.jsonl").write_text("\n".join([*odd, *earlier, again, "", '{"samples": 7']))
    (tmp_path / "events.jsonl").write_text('{"time": 1, "event": "resume"}\n{"time": "x"}\n{}\n[]\n{"time": 2}\n')
    assert main(["report", str(tmp_path), "--to", "tensorboard"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"mpidl: {tmp_path}: events.jsonl: 4 lines that are no events are left out",
        f"mpidl: {tmp_path}: metrics.jsonl: 5 lines that are no records are left out",
    ]
    # The last resumption has gone back to 100 samples.
    assert [step for step, _ in scalars(tmp_path / "tensorboard")["train_loss"]][-1] == 100
    assert max(step for step, _ in scalars(tmp_path / "tensorboard")["train_loss"]) == 100


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
