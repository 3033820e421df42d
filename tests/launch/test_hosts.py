"""A job on the hosts that are left."""

import os
import re

import pytest

from mpidl.launch import command as hosts
from mpidl.launch.command import leave_lost_hosts

#: A launcher that reaches no host but those whose names begin with "up".
LAUNCHER = """#!/bin/sh
[ "$1" = --version ] && exit
grep -q '^up' "$PRTE_MCA_prte_default_hostfile" && [ "$2" = 1 ] && exec "$3"
sleep 60
"""


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Gives the launcher hosts, by the lines of a file; returns the lines that it has now."""
    launcher, file = tmp_path / "mpiexec", tmp_path / "hosts"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    monkeypatch.setattr("mpidl.launch.command.find_mpiexec", lambda: launcher)
    monkeypatch.setattr(hosts, "PATIENCE", 0.5)

    def give(*lines):
        file.write_text("".join(f"{line}\n" for line in ("# a cluster", *lines)))
        for variable in ("PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE"):
            monkeypatch.setenv(variable, str(file))

    def present():
        with open(os.environ["HYDRA_HOST_FILE"]) as text:
            return [line.strip() for line in text if not line.startswith("#")]

    return give, present


@pytest.mark.parametrize(
    ("lines", "fits", "left", "ranks"),
    [
        (["up1 slots=4", "gone slots=4"], lambda ranks: True, ["up1 slots=4"], 4),
        (["up1", "up1", "gone", "up2"], lambda ranks: True, ["up1", "up1", "up2"], 6),
        (["up1:4", "gone:4", "gone2:4", "up2:4"], lambda ranks: ranks % 3 == 0, ["up1:4", "up2:4"], 3),
        (["up1", "gone"], lambda ranks: ranks > 5, ["up1"], 6),
        (["up1", "up2"], lambda ranks: True, ["up1", "up2"], 8),
        (["gone", "gone2"], lambda ranks: True, ["gone", "gone2"], 8),
    ],
)
def test_fewer_ranks_go_on_where_hosts_answer(given, capfd, lines, fits, left, ranks):
    give, present = given
    give(*lines)
    assert leave_lost_hosts(8, fits) == ranks
    assert present() == left
    said = [line for line in capfd.readouterr().err.splitlines() if "no answer" in line]
    names = ", ".join(dict.fromkeys(re.match(r"\w+", line)[0] for line in left))
    assert [line.partition(": going on with ")[2] for line in said] == (
        [] if left == lines else [f"{ranks} of 8 ranks on {names}"]
    )


def test_a_job_without_a_file_of_hosts_stays_as_it_is(monkeypatch):
    for variable in hosts.FILES:
        monkeypatch.delenv(variable, raising=False)
    assert leave_lost_hosts(8, lambda ranks: True) == 8
