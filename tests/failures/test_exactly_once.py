"""Whole jobs are killed and resumed; not one sample is lost or applied twice. ``make crashes`` does it in large."""

import random
from dataclasses import replace

import pytest
from bitwise import Setting, differences
from counting import ENCODED, NAME, Case, examine
from killing import strike_runs

import beside


@pytest.fixture
def place(tmp_path):
    """Return a function that makes an empty directory."""
    numbers = iter(range(100))

    def make():
        path = tmp_path / str(next(numbers))
        path.mkdir()
        return path

    return make


def faults(report):
    """Return all that went wrong, a line for each."""
    ends = [f"{report.lost} lost, {report.doubled} doubled"] * bool(report.lost or report.doubled)
    left = [f"{report.left} files left behind"] * bool(report.left)
    return "\n".join([*report.failed, *report.wrong, *ends, *left])


def test_a_killed_job_that_is_resumed_uses_every_sample_exactly_once(place, bare_environment):
    case = Case("downpour", {"name": "downpour", "n_push": 3}, replicas=(2,), padding=100_000)
    report = strike_runs(case, place, bare_environment, random.Random(1), kills=2)
    assert faults(report) == ""
    assert report.checkpoints > 3


@pytest.mark.long
def test_a_killed_job_with_a_relay_uses_every_sample_exactly_once(place, bare_environment):
    algorithm = {"name": "downpour", "wire": "topk:0.1", "wire_fetch": "bf16"}
    case = Case("downpour, topk, relay", algorithm, padding=100_000, **ENCODED)
    report = strike_runs(case, place, bare_environment, random.Random(5), kills=2)
    assert faults(report) == ""
    assert report.checkpoints > 3


@pytest.mark.long
def test_a_signal_at_any_phase_stops_a_job_that_can_be_resumed(place, bare_environment):
    case = Case("ssp", {"name": "ssp"}, replicas=(2,), epochs=6)
    report = strike_runs(case, place, bare_environment, random.Random(2), signals=2)
    assert faults(report) == ""


@pytest.mark.long
def test_a_killed_job_with_a_table_uses_every_sample_exactly_once(place, bare_environment):
    case = Case("ssp, tables", {"name": "ssp", "bound": 1}, servers=(1, 3), replicas=(2,), tables={"prefetch": 2})
    report = strike_runs(case, place, bare_environment, random.Random(7), kills=2, signals=1)
    assert faults(report) == ""
    assert report.checkpoints > 3


@pytest.mark.long
def test_a_killed_job_with_a_table_ends_with_the_same_bits(place, bare_environment):
    tables = {"max_rows": 600, "admission": 3}
    setting = Setting({"name": "downpour", "n_push": 3}, {"rule": "adagrad", "rate": 0.02}, servers=2, tables=tables)
    assert differences(setting, place(), bare_environment, random.Random(3), strikes=1) == []


@pytest.mark.long
def test_a_deterministic_run_that_is_killed_ends_with_the_same_bits(place, bare_environment):
    setting = Setting({"name": "downpour", "n_push": 3, "wire": "topk:0.1"}, {"rule": "adam", "rate": 0.01}, servers=1)
    assert differences(setting, place(), bare_environment, random.Random(3), strikes=1) == []


@pytest.mark.long
def test_a_run_whose_fragments_were_on_their_way_ends_with_the_same_bits(place, bare_environment):
    streaming = {"name": "diloco", "window": 6, "fragments": 2, "overlap": 4, "mixing": 0.5}
    setting = Setting(streaming, {"rule": "nesterov", "rate": 0.3}, servers=0)
    assert differences(setting, place(), bare_environment, random.Random(5), strikes=2) == []


@pytest.mark.long
def test_a_killed_run_goes_on_with_what_its_model_has_beside_the_parameters(place, bare_environment):
    setting = Setting({"name": "downpour", "n_push": 2}, {"rule": "sgd", "rate": 0.01}, model=beside)
    assert differences(setting, place(), bare_environment, random.Random(4), strikes=1) == []


@pytest.mark.long
def test_a_relay_goes_on_with_what_relays_had_left_out_of_pushes(tmp_path, mpidl):
    """The job is resumed on other ranks."""
    case = Case("relay", {"name": "downpour", "wire": "topk:0.1"}, epochs=1, padding=3000, pace=0.001, **ENCODED)
    config = case.write(tmp_path)
    for servers, *words in ((1, config), (2, "--resume", f"runs/{NAME}", "--set", "run.epochs=2")):
        words += ["-n", 1 + servers + 4 + case.relays, "--set", f"topology.servers={servers}"]
        done = mpidl("train", *words, **case.environment(tmp_path, replicas=4))
        assert done.returncode == 0, done.stderr
        assert "relay 0" in done.stderr
    last = tmp_path / "runs" / NAME / "checkpoints" / str(2 * case.steps)
    assert examine(last, replace(case, epochs=2), whole=True).fault == ""
