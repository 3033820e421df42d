"""What ``--resume`` does with a run that is finished, has no checkpoint yet, or has a damaged one."""

import json

import pytest

from mpidl.config import from_dict
from mpidl.runs.start import run

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
    assert f"mpidl: {tmp_path / 'digits'}: no checkpoint yet, beginning anew\n" in capfd.readouterr().err
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
