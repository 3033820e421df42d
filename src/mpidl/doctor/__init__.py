"""`mpidl doctor`: examines this machine, its MPI and its network, and suggests a remedy for each problem.

Probes import NumPy and MPI themselves, so that the others work without these.
"""

from __future__ import annotations

from pathlib import Path

from mpidl.doctor.examination import Examination, Finding, Verdict
from mpidl.errors import UsageError
from mpidl.launch import environment

__all__ = ["main"]


def main(save: Path | None = None) -> int:
    """Examine this machine and print a table; collective over the ranks of an MPI job.

    Without an MPI job, one of two ranks is started; without mpirun, this process runs the probes that need no other
    rank, and reports that mpirun is missing. The first rank measures against the last, which may be on another
    node. The measurements are written to the file `save`, if given. The exit code is 0 if everything that mpidl needs
    works, otherwise 1.
    """
    started, missing = environment.world(), None
    if started.size == 1:
        from mpidl.launch.mpiexec import launch
        from mpidl.report.progress import ProgressScreen

        try:
            return launch(2, ["doctor", *([] if save is None else [f"--save={save.absolute()}"])], ProgressScreen())
        except UsageError as error:
            missing = Finding(str(error), Verdict.FAILED)
    environment.prepare_libraries()
    from mpidl.doctor import machine

    examination = Examination(speaks=started.rank == 0)
    if examination.speaks:
        for what, probe in machine.PROBES.items():
            examination.check(what, probe)
    if missing is not None:
        examination.check("two ranks", lambda: missing)
        return examination.end()
    if not examination.check("MPI library", machine.identify):
        return examination.end()
    from mpidl.doctor.ranks import examine

    return examine(examination, save)
