"""Groups of parameters in a configuration and in a script."""

import numpy as np
import pytest

import mpidl
from mpidl.config import from_dict, load
from mpidl.job.build import build
from mpidl.job.fill import own_segments
from mpidl.job.placed import place
from mpidl.nn import Group
from mpidl.parameters import Range
from mpidl.rules.segments import Segment
from mpidl.storage.checkpoint import Checkpoint

GROUPS = [{"match": "*.bias", "rate": 0.5, "weight_decay": 0.0}, {"match": "0-*", "frozen": True}]


def sections(tmp_path, groups=GROUPS, **more):
    layers = [{"type": "dense", "units": 4, "activation": "relu"}, {"type": "dense", "units": 10}]
    return {
        "run": {"dir": str(tmp_path), "name": "run", "steps": 12, **more.pop("run", {})},
        "data": {"source": "digits"},
        "model": {"layer": layers, "group": groups},
        "device": {"kind": "cpu"},
        **more,
    }


def test_groups_are_read_and_written(tmp_path):
    config = from_dict(sections(tmp_path))
    assert config.model.group == (Group("*.bias", 0.5, 0.0), Group("0-*", frozen=True))
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert load(tmp_path / "again.toml") == config
    biases = [Segment(Range(start, stop), 0.5, 0.0) for start, stop in ((256, 260), (300, 310))]
    assert place(build(config), 1).segments == [Segment(Range(0, 256), frozen=True), *biases]


@pytest.mark.parametrize(
    ("groups", "line"),
    [
        ([{"match": "x"}], "model.group[0].match: 'x' matches none of 0-dense.weight, 0-dense.bias, 1-dense.weight, 1"),
        ([{"rate": 1.0}], "model.group[0].match: missing, expected non-empty str"),
        ([{"match": "*", "rate": -1}], "model.group[0].rate: expected float >= 0, found -1"),
        ([{"match": "*", "weightdecay": 1}], "model.group[0].weightdecay: unknown key, did you mean 'weight_decay'?"),
    ],
)
def test_wrong_groups_are_one_line(tmp_path, groups, line):
    with pytest.raises(mpidl.UsageError) as error:
        mpidl.train(config=sections(tmp_path, groups))
    assert str(error.value).startswith(line)
    assert not (tmp_path / "run").exists()


def test_a_script_gives_groups_and_the_outer_rule_knows_only_what_is_frozen(tmp_path):
    network = mpidl.Network([mpidl.Dense(4), mpidl.Dense(10)], (8, 8), dtype="float64")
    before = network.parameters.copy()
    mpidl.train(
        network, mpidl.Digits(), groups=[Group("0-dense.weight", frozen=True), {"match": "*.bias", "rate": 0.0}],
        rule=mpidl.rules.Adamw(0.01), steps=12, dir=tmp_path,
    )  # fmt: skip
    changed = network.parameters != before
    assert not changed[:260].any()
    assert changed[260:300].all()
    assert not changed[300:].any()
    outer = from_dict(sections(tmp_path, algorithm={"name": "diloco"}))
    placed = place(build(outer), 1)
    assert placed.scheduled_rule.segments == [Segment(Range(0, 256), frozen=True)]
    assert len(own_segments(placed, Range(0, placed.layout.size))) == 3


def test_a_line_search_keeps_what_is_frozen(tmp_path):
    config = sections(tmp_path, algorithm={"name": "sandblaster"}, run={"steps": None, "epochs": 3})
    summary = mpidl.train(config=config)
    first, last = (Checkpoint(path) for path in sorted((tmp_path / "run" / "checkpoints").iterdir())[:2])
    whole = Range(0, first.size)
    changed = first.read("parameters", whole) != last.read("parameters", whole)
    assert summary["epochs"] >= 3
    assert not changed[:256].any()
    assert np.count_nonzero(changed[256:]) > 40
