"""The jobs that ``make crashes`` kills can begin, with each number of servers that is chosen for them."""

import pytest
from bitwise import MATRIX
from counting import CASES

from mpidl.config import load
from mpidl.job.build import build
from mpidl.job.fill import held_shards
from mpidl.job.placed import place


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_job_that_counts_has_shards_for_all_its_servers(case, tmp_path, monkeypatch):
    for name, value in case.environment(tmp_path, replicas=1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    job = place(build(load(case.write(tmp_path))), 1)
    for servers in filter(None, case.servers):
        assert len(held_shards(job, servers)) == servers


@pytest.mark.parametrize("setting", MATRIX, ids=str)
def test_a_deterministic_job_has_shards_for_all_its_servers(setting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = place(build(load(setting.write(tmp_path))), 3)
    if setting.servers:
        assert len(held_shards(job, setting.servers)) == setting.servers
