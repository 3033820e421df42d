"""What ``--resume`` does with a run that is finished, has no checkpoint yet, or has a damaged one."""

import dataclasses
import functools
import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpidl as package
from mpidl.config import from_dict
from mpidl.data import ArraySplit, Dataset, Portions, opened
from mpidl.errors import UsageError
from mpidl.runs.start import finished, run

SAMPLES = 1437


def config(path, **section):
    return from_dict(
        {
            "run": {"dir": str(path), "name": "digits", "epochs": 2, "report": 1e-3, **section},
            "data": {"source": "digits"},
            "model": {"layer": [{"type": "dense", "units": 10}]},
            "device": {"kind": "cpu"},
        }
    )


@pytest.fixture
def trained(tmp_path):
    run(config(tmp_path))
    return tmp_path / "digits"


def test_a_finished_run_is_left_alone(trained, capfd):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    capfd.readouterr()
    summary = run(config(trained.parent), resume=trained)
    assert capfd.readouterr().err == f"mpidl: {trained}: finished, 2 epochs; nothing is left to train\n"
    assert summary["samples"] == 2 * SAMPLES
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_a_run_that_is_to_be_longer_goes_on_and_counts_from_its_beginning(trained):
    first = json.loads((trained / "summary.json").read_text())
    summary = run(config(trained.parent, epochs=3), resume=trained)
    assert (summary["samples"], summary["epochs"]) == (3 * SAMPLES, 3)
    assert summary["seconds"] > first["seconds"] > 0
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    for name in ("time", "samples"):
        figures = [record[name] for record in records]
        assert figures == sorted(figures), name


def test_a_run_that_was_interrupted_is_not_finished(trained):
    path = trained / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"interrupted": True}))
    assert run(config(trained.parent), resume=trained)["interrupted"] is False


def test_a_run_without_a_checkpoint_begins_anew_in_its_directory(tmp_path, capfd):
    summary = run(config(tmp_path), resume=tmp_path / "digits")
    assert f"mpidl: {tmp_path / 'digits'}: no checkpoint yet, starting from the beginning\n" in capfd.readouterr().err
    assert (summary["samples"], summary["run_dir"]) == (2 * SAMPLES, str(tmp_path / "digits"))
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_a_damaged_checkpoint_is_passed_over(trained, capfd):
    (trained / "summary.json").unlink()
    newest = max((trained / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shard = newest / "shard-0.h5"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    summary = run(config(trained.parent), resume=trained)
    line = f"mpidl: {newest}: shard-0.h5 is damaged (checksum); taking 0 instead\n"
    assert line in capfd.readouterr().err
    assert summary["samples"] == 2 * SAMPLES


def test_a_run_is_resumed_from_within_its_directory(trained, monkeypatch, capfd):
    monkeypatch.chdir(trained)
    given = from_dict(config(trained.parent, epochs=3).to_dict())
    summary = run(given, resume=type(trained)("."))
    assert (summary["epochs"], summary["run_dir"]) == (3, str(trained))
    assert [path.name for path in trained.parent.iterdir()] == ["digits"]
    assert f"{trained}: finished" not in capfd.readouterr().err


def test_a_run_that_another_process_trains_is_left_alone(trained, bare_environment):
    hold = "import sys; from pathlib import Path; from mpidl.storage.lock import Lock\n"
    hold += "lock = Lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    half = trained / "checkpoints" / ".7"
    half.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", hold, trained], env=bare_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=rf"^{trained}: in use by process {other.pid} on "):
            run(config(trained.parent, epochs=3), resume=trained)
        other.stdin.close()
    assert half.exists()
    assert run(config(trained.parent, epochs=3), resume=trained)["epochs"] == 3


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"data": {"batch": 64}},
            "data.batch: 64, but {} was saved with 128, and its position in the data depends on that",
        ),
        (
            {"data": {"portion": 256}},
            "data.portion: 256, but {} was saved with 512, and its position in the data depends on that",
        ),
        ({"run": {"seed": 1}}, "run.seed: 1, but {} was saved with 0, and its position in the data depends on that"),
        (
            {"model": {"layer": [{"type": "dense", "units": 10, "name": "other"}]}},
            "{}: parameters other/weight: found none, the model has one of shape (64, 10)",
        ),
        (
            {"model": {"layer": [{"type": "dense", "units": 5}, {"type": "dense", "units": 10}]}},
            "{}: 650 parameters, the model has 385",
        ),
    ],
)
def test_what_does_not_fit_the_checkpoint_is_one_line(trained, changes, line):
    values = config(trained.parent, epochs=3).to_dict()
    values = {name: {**section, **changes.get(name, {})} for name, section in values.items()}
    with pytest.raises(UsageError) as error:
        run(from_dict(values), resume=trained)
    assert str(error.value).startswith(line.format(trained / "checkpoints" / "24"))


class Tally:
    """Adds up the numbers of the samples that it was trained with."""

    def __init__(self):
        self.parameters = np.zeros(2)

    def loss_and_gradient(self, batch):
        return 0.0, np.full(2, float(np.sum(batch.inputs[:, 0] + 1)))

    def evaluate(self, batch):
        return 0.0, 0


def numbers(samples, contiguous=False, first=0):
    split = ArraySplit(np.arange(first, first + samples, dtype=np.float32)[:, None], np.zeros((samples, 1), np.float32))
    split.contiguous = contiguous
    return Dataset("test", (1,), None, split, split)


class Indices:
    """Samples that are their own number."""

    def __init__(self, samples):
        self._samples = samples

    def __len__(self):
        return self._samples

    def __getitem__(self, index):
        return np.array([index], np.float32), np.zeros(1, np.float32)


def indexed(samples):
    return package.Indexed(Indices(samples), Indices(samples))


def test_other_data_are_one_line(tmp_path):
    options = {"batch": 4, "dir": tmp_path, "rule": package.Sgd(1.0)}
    package.train(Tally(), numbers(20), **options, epochs=1)
    with pytest.raises(UsageError, match=r"^data: training samples: 19, but .*/5 was saved with 20$"):
        package.train(Tally(), numbers(19), **options, epochs=2, resume=True)
    with pytest.raises(UsageError, match=r"^data: checksum of the training samples: \w+, but .*/5 was saved with \w+$"):
        package.train(Tally(), numbers(20, first=1), **options, epochs=2, resume=True)
    other_test = dataclasses.replace(numbers(20), test=numbers(7).test)
    assert package.train(Tally(), other_test, **options, epochs=2, resume=True)["epochs"] == 2


@settings(max_examples=15)
@given(
    size=st.tuples(st.integers(3, 30), st.integers(1, 5), st.integers(1, 4)),
    ends=st.lists(st.integers(1, 30), min_size=2, max_size=3),
    data=st.sampled_from([numbers, functools.partial(numbers, contiguous=True), indexed]),
    deterministic=st.booleans(),
    n_push=st.integers(1, 3),
)
def test_a_run_that_is_extended_trains_every_batch_once(tmp_path_factory, size, ends, data, deterministic, n_push):
    """Also where it had ended in the middle of a portion."""
    samples, batch, batches = size
    steps, directory = 0, tmp_path_factory.mktemp("run")
    for number, more in enumerate(ends):
        steps += more
        package.train(
            Tally(), data(samples), algorithm=package.Downpour(n_push=n_push), rule=package.Sgd(1.0),
            batch=batch, portion=batch * batches, deterministic=deterministic, steps=steps, dir=directory,
            resume=number > 0,
        )  # fmt: skip
    portions = Portions(samples, batch, batch * batches, 0, opened(data(samples)).train.contiguous)
    order = [each for number in range(steps) for each in portions.batches(number)]
    with h5py.File(directory / "run" / "checkpoints" / str(steps) / "index.h5") as index:
        assert index["parameters/parameters"][0] == -sum(float(np.sum(each + 1)) for each in order[:steps])


def test_records_of_a_resumed_run_never_go_back(trained):
    """Its first run has evaluated the epoch at which it goes on, and one that was killed had gone beyond."""
    metrics = trained / "metrics.jsonl"
    last = json.loads(metrics.read_text().splitlines()[-1])
    with metrics.open("a") as file:
        file.writelines(json.dumps(last | {"samples": last["samples"] + more}) + "\n" for more in (64, 128))
    run(config(trained.parent, epochs=4), resume=trained)
    found = package.open(trained)
    places = [found.metrics[name] for name in ("samples", "epoch", "time")]
    assert all((np.diff(each) >= 0).all() for each in places)
    assert np.isfinite(found.metrics["test_loss"][found.metrics["epoch"] > 1]).all()
    assert found.metrics["train_loss"][found.metrics["epoch"] == 2][-1] == last["train_loss"]
    assert found.metrics["samples"][-1] == 4 * SAMPLES


DONE = {"algorithm": "downpour", "epochs": 2.0, "interrupted": False}


@pytest.mark.parametrize(
    ("summary", "is_finished"),
    [
        (json.dumps(DONE), True),
        (json.dumps(DONE | {"interrupted": True}), False),
        (json.dumps(DONE | {"algorithm": "sync"}), False),
        *((text, False) for text in (json.dumps(DONE)[:-9], "[1]", "", None)),
    ],
)
def test_a_summary_says_whether_a_run_is_finished(tmp_path, summary, is_finished):
    (tmp_path / "config.toml").write_text(config(tmp_path).to_toml())
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    assert finished(config(tmp_path), tmp_path) == (DONE if is_finished else None)
