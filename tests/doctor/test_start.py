"""What `mpidl doctor` finds about the start of a rank."""

import sys
from pathlib import Path

import pytest

from mpidl.doctor import start as probe
from mpidl.doctor.examination import Verdict
from mpidl.doctor.start import Start, described, file_system, start

MOUNTS = """overlay / overlay rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
head:/sw /sw nfs4 ro 0 0
/dev/sda1 /sw/local ext4 rw 0 0
"""


def test_a_process_that_imports_what_a_worker_does_counts(monkeypatch):
    told = []
    monkeypatch.setattr(probe, "described", lambda found, *others: told.append(found))
    start()
    (found,) = told
    assert 0.1 < found.processor < 60
    assert found.seconds > 0.1
    assert found.modules > 700  # 540 if only rules are imported
    # A module takes a look at several directories of sys.path, and an open.
    assert found.calls > 3 * found.modules
    assert 1e-7 < found.call < 0.1


def test_a_start_that_takes_too_long(monkeypatch):
    monkeypatch.setattr(probe, "PATIENCE", 0.01)
    found, verdict, remedy = start()
    assert found == "importing what a worker needs takes more than 0.01 s"
    assert verdict is Verdict.WARNING
    assert "mpidl submit --env" in remedy


def test_a_start_that_fails(monkeypatch, tmp_path):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise OSError('broken')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert start() == ("OSError: broken", Verdict.FAILED, "")


@pytest.mark.parametrize(
    ("call", "kind", "verdict", "crowd"),
    [
        (5e-6, "ext4", Verdict.OK, False),
        (5e-6, "nfs4", Verdict.OK, True),
        (5e-4, "ext4", Verdict.WARNING, True),
        (5e-4, "lustre", Verdict.WARNING, True),
    ],
)
def test_what_is_said_of_a_start(call, kind, verdict, crowd):
    found = described(Start(2.5, 1.25, 900, 4500, call), kind, "unpack it")
    calls = f"4500 path calls of Python, of {1e6 * call:.0f} us each, on {kind}"
    assert found.found == f"900 modules in 2.5 s, 1.2 s of processor time; {calls}"
    assert found.verdict is verdict
    assert ("1000 ranks wait 150 s" in found.remedy and found.remedy.endswith(": unpack it")) == crowd


def test_file_systems(monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "MOUNTS", tmp_path / "mounts")
    assert file_system(Path("/sw")) == "an unknown file system"
    (tmp_path / "mounts").write_text(MOUNTS)
    for path, kind in (("/usr", "overlay"), ("/sw/mpidl", "nfs4"), ("/sw/local/mpidl", "ext4"), ("/swap", "overlay")):
        assert file_system(Path(path)) == kind
