"""``mpidl simulate`` with failures: what follows from them is what would on ranks, and the summary has its cost."""

import pytest

from mpidl.config import from_dict
from mpidl.report import text
from mpidl.runs.simulate import simulate

JOB = {
    "run": {"epochs": 10}, "data": {"source": "digits", "batch": 64, "portion": 64},
    "model": {"layer": [{"type": "dense", "units": 10}]}, "algorithm": {"name": "downpour"},
    "server": {"rule": "sgd", "rate": 0.02}, "checkpoint": {"every": 5.0},
    "virtual": {"compute": 1.0, "latency": 0.0, "service": 0.01, "bandwidth": 1e12, "ranks_per_node": 9,
                "failures": "exponential:100", "restart": 3.0},
}  # fmt: skip


def run(monkeypatch, tmp_path, **changes):
    monkeypatch.chdir(tmp_path)
    config = {name: dict(section) for name, section in JOB.items()}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config.setdefault(section, {})[name] = value
    return simulate(from_dict(config), 4)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"topology__standby": 1}, "failures: one every 14.3 s\n"),
        (
            {"topology__survive": "off"},
            "16.7 s; each starts the job again, from the last checkpoint: topology.survive: off",
        ),
        (
            {"virtual__ranks_per_node": 2},
            "16.7 s; each starts the job again, from the last checkpoint: the ranks are on 3",
        ),
        ({"algorithm__name": "sync"}, "failures: one every 20 s; each starts the job again, from the last checkpoint"),
    ],
)
def test_what_follows_from_failures_is_what_would_on_ranks(monkeypatch, tmp_path, capfd, changes, line):
    summary = run(monkeypatch, tmp_path, **changes)
    assert line in capfd.readouterr().err
    assert summary["samples"] == 10 * 1437
    assert summary["failures"] > 0
    if "each starts" in line:
        assert summary["restarts"] == summary["recoveries"] == summary["failures"]
        assert summary["samples_again"] > 0
    spent = summary["samples"] / summary["goodput"]
    assert summary["goodput"] * (1 + summary["samples_again"] / summary["samples"]) == pytest.approx(
        summary["samples_per_second"]
    )
    assert spent == pytest.approx(summary["seconds"])
    assert f"{summary['samples_again']} samples were computed again: goodput" in text.summary(summary)
