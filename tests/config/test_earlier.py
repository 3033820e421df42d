"""Configurations and runs of earlier versions: loaded and resumed, or one line says what to do."""

import shutil
from pathlib import Path

import pytest

from mpidl.config import DebugSection, from_dict, load
from mpidl.errors import UsageError
from mpidl.rules import Adam
from mpidl.runs.evaluate import evaluate
from mpidl.runs.start import run

#: Directory of a run of 20 steps, as version 0.1.0 wrote it.
EARLIER = Path(__file__).parent / "run_of_0.1.0"


def sections(**more):
    return {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}, **more}


def test_a_configuration_written_by_an_earlier_version():
    config = load(EARLIER / "config.toml", ["debug.slow_worker=1"])
    assert config.topology.servers == 2
    assert config.rule == Adam()
    assert config.debug == DebugSection(slow_worker=1, gradient_seconds=0.0001)
    assert from_dict(config.to_dict()) == config


def test_a_run_of_an_earlier_version_is_resumed(tmp_path):
    shutil.copytree(EARLIER, tmp_path / "old")
    before = evaluate(tmp_path / "old")
    assert (before["step"], before["test_loss"]) == (20, pytest.approx(2.093647, abs=1e-5))
    summary = run(load(tmp_path / "old" / "config.toml", ["run.steps=40"]), resume=tmp_path / "old")
    assert summary["epochs"] == 5
    assert evaluate(tmp_path / "old")["step"] == 40


def test_removed_keys_that_had_no_effect_on_training_are_ignored():
    assert from_dict(sections(run={"record": True, "seed": 2})) == from_dict(sections(run={"seed": 2}))
    assert from_dict(sections(algorithm={"wire_within_nodes": False})) == from_dict(sections())


def test_a_target_accuracy_is_a_target():
    assert from_dict(sections(run={"target_accuracy": 0.9})).run.target == "accuracy >= 0.9"


@pytest.mark.parametrize(
    ("name", "table", "line"),
    [
        (
            "algorithm",
            {"name": "sandblaster", "warm_rate": 0.1},
            "algorithm.warm_rate: 0.1, but a warm start has a rate of 0.01; leave the key out",
        ),
        ("test", 3, "test: expected a section, [test], found 3"),
        ("test", {"slow_workr": 1}, "debug.slow_workr: unknown key, did you mean 'slow_worker'?"),
        ("topology", 3, "topology: expected a section, [topology], found 3"),
    ],
)
def test_what_can_not_be_taken_over_is_one_line(name, table, line):
    with pytest.raises(UsageError) as error:
        from_dict(sections(**{name: table}))
    assert str(error.value) == line


def test_the_new_name_wins():
    config = from_dict(sections(test={"slow_worker": 1, "slow_factor": 2.0}, debug={"slow_worker": 3}))
    assert config.debug == DebugSection(slow_worker=3, slow_factor=2.0)
