"""An examination: runs probes in order, prints a line of a table for each, and draws a conclusion."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from mpidl.errors import named
from mpidl.launch.output import deliver

if TYPE_CHECKING:
    from mpi4py import MPI

#: Seconds that a probe may take before it counts as hanging.
PATIENCE = 20.0

WHAT_WIDTH, VERDICT_WIDTH, WIDTH = 26, 9, 118


class Verdict(Enum):
    """The verdict of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


class Finding(NamedTuple):
    """The result of a probe."""

    found: str
    verdict: Verdict = Verdict.OK
    remedy: str = ""  # or a consequence

    @classmethod
    def warning(cls, problem: object, found: str, remedy: str) -> Finding:
        """Return what was found, as a warning if there is a problem."""
        return cls(found, Verdict.WARNING, remedy) if problem else cls(found)


#: Called on every rank of the examination's communicator; the first rank's finding counts.
Probe = Callable[..., Finding]


class Examination:
    """Runs probes and prints each finding at once, so that a crash or a hang shows on the line of its probe.

    Only a rank that `speaks` prints. The ranks of `comm`, if any, run the probes together: a probe fails on all if it
    raises on one.
    """

    def __init__(self, speaks: bool = True) -> None:
        self.speaks = speaks
        self.comm: MPI.Comm | None = None
        self._failed: list[str] = []

    def check(self, what: str, probe: Probe, *arguments: object, needed: bool = True) -> bool:
        """Run a probe and print its line; return True unless it failed, on all ranks of `comm`; collective.

        Unless it is `needed`, a failure becomes a warning, and a warning is ignored.
        """
        self._print(what.ljust(WHAT_WIDTH - 1) + " ", end="")
        # Silent ranks end later: a launcher may end the rank that prints as soon as one of them ends.
        watchdog = threading.Timer(PATIENCE + 5.0 * (not self.speaks), self._give_up, [what])
        watchdog.daemon = True
        watchdog.start()
        finding = self._agreed(probe, arguments)
        watchdog.cancel()
        worked = finding.verdict is not Verdict.FAILED
        if not worked and needed:
            self._failed.append(what)
        if not needed:
            finding = finding._replace(verdict=Verdict.OK if worked else Verdict.WARNING)
        self._print_finding(finding)
        return worked

    def heading(self, text: str) -> None:
        """Print a heading for the following lines."""
        self._print(f"{text}:")

    def end(self) -> int:
        """Print the conclusion and return the exit code.

        Ranks that don't print return 0, because a launcher may end all ranks as soon as one fails.
        """
        if self._failed and self.speaks:
            self._print(f"\nFAILED: {', '.join(what.strip() for what in self._failed)}")
            return 1
        self._print("\nEverything that mpidl needs works.")
        return 0

    def _agreed(self, probe: Probe, arguments: Sequence[object]) -> Finding:
        """Return the first rank's finding, or the error of the first rank that failed."""
        finding, error = Finding(""), ""
        try:
            finding = probe(*arguments)
        except Exception as caught:
            error = " ".join(named(caught).split())
        for rank, each in enumerate([error] if self.comm is None else self.comm.allgather(error)):
            if each:
                return Finding(each if rank == 0 else f"{each} (on the last rank)", Verdict.FAILED)
        return finding if self.comm is None else self.comm.bcast(finding)

    def _give_up(self, what: str) -> None:
        """End this process because its probe hangs, and say so on the probe's line."""
        self._failed.append(what)
        self._print_finding(Finding(f"no answer within {PATIENCE:g} s", Verdict.FAILED))
        self.end()
        os._exit(1)

    def _print_finding(self, finding: Finding) -> None:
        indent = " " * (WHAT_WIDTH + VERDICT_WIDTH)
        text = textwrap.fill(finding.found, WIDTH, initial_indent=indent, subsequent_indent=indent).lstrip()
        self._print(finding.verdict.value.ljust(VERDICT_WIDTH) + text)
        if finding.remedy:
            self._print(textwrap.fill(finding.remedy, WIDTH, initial_indent=f"{indent}-> ", subsequent_indent=indent))

    def _print(self, text: str, end: str = "\n") -> None:
        if self.speaks:
            deliver(text, end)
