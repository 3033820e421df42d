"""`mpidl doctor`: examines this machine, its MPI and its network, and suggests a remedy for each problem.

Probes import NumPy and MPI themselves, so that the others work without these.
"""

from __future__ import annotations

from pathlib import Path

from mpidl.doctor.examination import Examination, Finding
from mpidl.errors import UsageError
from mpidl.launch import environment

__all__ = ["main"]


def main(save: Path | None = None) -> int:
    """Examine this machine and print a table; collective over the ranks of an MPI job.

    Without an MPI job, one of two ranks is started. The first rank measures against the last, which may be on another
    node. The measurements are written to the file `save`, if given. The exit code is 0 if everything that mpidl needs
    works, otherwise 1.
    """
    started = environment.world()
    if started.size == 1:
        return _start_two(save)
    environment.prepare_libraries()
    examination = Examination(speaks=started.rank == 0)
    _examine_machine(examination)
    from mpidl.doctor import machine

    if not examination.check("MPI library", machine.identify):
        return examination.end()
    from mpidl.doctor.ranks import examine

    return examine(examination, save)


def _start_two(save: Path | None) -> int:
    """Run the doctor on two ranks; without mpirun, run the probes of one process, and report that mpirun is missing."""
    from mpidl.launch.mpiexec import launch
    from mpidl.report.screen import Screen

    try:
        return launch(2, ["doctor", *([] if save is None else [f"--save={save.absolute()}"])], Screen())
    except UsageError as error:
        no_launcher = error
    environment.prepare_libraries()
    examination = Examination()
    _examine_machine(examination)

    def fail() -> Finding:
        raise no_launcher

    examination.check("two ranks", fail)
    return examination.end()


def _examine_machine(examination: Examination) -> None:
    from mpidl.doctor import machine

    if examination.speaks:
        for what, probe in machine.PROBES.items():
            examination.check(what, probe)
