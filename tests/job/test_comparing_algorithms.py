"""An algorithm chosen over a file's: a line says what it keeps of the file, and what its own default would be."""

import pytest

import mpidl
from mpidl.config import load, toml
from mpidl.job.build import build
from mpidl.runs import train as module

FILE = {
    "data": {"source": "digits"},
    "model": {"layer": [{"type": "dense", "units": 10}]},
    "algorithm": {"name": "downpour", "n_push": 2, "wire": "bf16"},
    "server": {"rule": "adagrad", "rate": 0.02},
}
RULE = "server.rule: adagrad (rate 0.02), given for downpour, is the outer rule of diloco now; its own default, by "
DEFAULT = "--set server.rule=default, is nesterov (rate 0.7, momentum 0.9)"
WIRE = "algorithm.wire: 'bf16', given for downpour, is that of ssp now; its own default is 'fp32'"
NESTEROV = {"algorithm": {"name": "diloco"}, "server": {"rule": "nesterov", "rate": 0.7}}


@pytest.fixture
def notes(tmp_path):
    """Return a function from changes of the file and overrides to a job's notes."""

    def notes(overrides, **changes):
        path = tmp_path / "job.toml"
        path.write_text(toml.dump(FILE | changes))
        return build(load(path, overrides)).notes

    return notes


@pytest.mark.parametrize(
    ("overrides", "changes", "lines"),
    [
        ([], {}, []),
        (["algorithm.name=diloco"], {"algorithm": {}}, [RULE + DEFAULT]),
        (["algorithm.name=diloco", "server.rule=default"], {"algorithm": {}}, []),
        (["algorithm.name=diloco", "server.rule=nesterov"], {"algorithm": {}}, []),
        (["algorithm.name=ssp"], {"algorithm": {"wire": "bf16"}, "server": {}}, [WIRE]),
        (["algorithm.name=ssp", "algorithm.wire=int8"], {"algorithm": {"wire": "bf16"}, "server": {}}, []),
        (
            ["algorithm.name=downpour"],
            NESTEROV,
            [
                "server.rule: nesterov (rate 0.7, momentum 0.9), given for diloco, is the rule of downpour now; its "
                "own default, by --set server.rule=default, is adagrad (rate 0.01)"
            ],
        ),
        (["algorithm.name=diloco"], NESTEROV, []),
        (["algorithm.name=diloco"], {"algorithm": {"name": "sync"}, "server": {}}, []),
        (["algorithm.n_push=1"], {}, []),
    ],
)
def test_what_is_kept_of_a_file_is_said(notes, overrides, changes, lines):
    assert notes(overrides, **changes) == lines


def test_a_script_that_compares_algorithms(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(module, "run", lambda config, resume, make: found.append(build(config).notes) or {})
    file = FILE | {"algorithm": {"name": "downpour"}}
    (tmp_path / "job.toml").write_text(toml.dump(file))
    for config in (file, tmp_path / "job.toml", load(tmp_path / "job.toml")):
        mpidl.train(config=config, algorithm="diloco")
        mpidl.train(config=config, algorithm=mpidl.algorithms.Diloco())
        assert [found.pop() for _ in range(2)] == 2 * [[RULE + DEFAULT]]
        mpidl.train(config=config, algorithm="diloco", rule="default")
        mpidl.train(config=config, algorithm="ssp", rule=mpidl.Adam())
        assert [found.pop() for _ in range(2)] == [[], []]
    mpidl.train(config={**file, "algorithm": {"name": "diloco"}}, rule={"rule": "nesterov", "rate": 0.1})
    assert found.pop() == []


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"algorithm": {"name": "sync"}, "topology": {"servers": 3}}, ["topology.servers: 3, but sync has no servers"]),
        ({"algorithm": {}, "topology": {"servers": 3}}, []),
        (
            {"algorithm": {"name": "sandblaster"}, "rate": {"schedule": "cosine"}},
            ["rate: sandblaster ignores the schedule: a line search finds the length of each step"],
        ),
        ({"topology": {"schedule": "gpipe"}}, ["topology.schedule: 'gpipe', but topology.stages is 1"]),
        ({"topology": {"schedule": "gpipe", "stages": 2, "partitions": 2}}, []),
    ],
)
def test_what_has_no_effect_is_said(notes, changes, lines):
    server = {} if changes.get("algorithm", {}).get("name") == "sandblaster" else FILE["server"]
    assert notes([], **{"server": server, **changes}) == lines


@pytest.mark.parametrize(
    ("run", "lines"),
    [
        ({"epochs": 12}, []),
        ({"epochs": 2}, ["run.epochs: 2, too few for stacking to train its whole model: expected 12 epochs or more"]),
        ({"steps": 9}, ["run.steps: 9, too few for stacking to train its whole model: expected 12 epochs or more"]),
    ],
)
def test_a_run_that_is_too_short_for_all_modules_is_noted(notes, run, lines):
    assert notes([], run=run, model={}, algorithm={"name": "stacking", "modules": 3}, server={}) == lines


LEANS = "leans towards the data of fast workers"


@pytest.mark.parametrize(
    ("algorithm", "lines"),
    [
        ({"name": "downpour"}, [f"data.split: 'label:2', and downpour {LEANS}: rescaled and ringleader don't"]),
        ({"name": "ssp"}, []),
        ({"name": "sync"}, []),
        ({"name": "ringleader"}, []),
        (
            {"name": "rescaled", "max_staleness": 4},
            [f"algorithm.max_staleness: 4, with which rescaled {LEANS}: leave it out"],
        ),
    ],
)
def test_algorithms_that_lean_towards_fast_workers_are_noted(notes, algorithm, lines):
    data = {"source": "digits", "split": "label:2"}
    assert notes([], algorithm=algorithm, data=data, server={}) == lines
