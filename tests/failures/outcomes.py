"""What became of a job that something happened to: its end, its events, and how often it applied each sample."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from counting import BATCH, BEGUN, GRADIENTS, PORTION, Case, read_verified
from faults import Target

from mpidl.data.schedule import Portions
from mpidl.shards.shard import CHUNK_BYTES

#: Outcomes, from the best.
OUTCOMES = ("survived", "taken over", "restarted", "lost", "hung")
#: The least test accuracy of the digits.
ACCURACY = 0.9


@dataclass
class Found:
    """What became of a run.

    Attributes
    ----------
    run : Path
    target : Target
    code : int or None
        The exit code; None if the job hung.
    said : str
        Its last line.
    case : Case or None
        That of a job that counts.
    """

    run: Path
    target: Target
    code: int | None
    said: str
    case: Case | None

    def row(self, ends: bool) -> dict[str, Any]:
        """Return the figures; `ends` says whether the fault may end a job."""
        outcome, missing, doubled, unreported, accuracy = self._outcome(), 0, 0, 0, None
        if self.code == 0 and self.case is not None:
            missing, doubled, unreported = self._counted(self.case)
        elif self.code == 0:
            summary = self.run / "summary.json"  # Without one, the run has ended elsewhere.
            accuracy = float(json.loads(summary.read_text())["test_accuracy"]) if summary.exists() else 0.0
        wrong = doubled or unreported or (accuracy is not None and accuracy < ACCURACY)
        # A launcher that has been killed itself says nothing.
        says_why = self.said.startswith("mpidl: ") or self.code == -signal.SIGKILL
        expected = ends and self.target.deeds and says_why
        failed = outcome == "hung" or (outcome == "lost" and not expected)
        return {
            "deeds": self.target.deeds,
            "outcome": outcome,
            "failures": len(self._events("failure")),
            "notice": self._notice(),
            "update": self._update(),
            "missing": missing,
            "unreported": unreported,
            "doubled": doubled,
            "accuracy": accuracy,
            "code": self.code,
            "said": self.said if self.code else "",
            "good": not (wrong or failed),
        }

    def _events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.run) if event["event"] in kinds]

    def _outcome(self) -> str:
        if self.code != 0:
            return "hung" if self.code is None else "lost"
        recoveries = [event.get("what", "takeover") for event in self._events("recovery")]
        if "restart" in recoveries:
            return "restarted"
        return "taken over" if recoveries else "survived"

    def _notice(self) -> float | None:
        """Return the seconds from the first fault to the event of a failure; None without one."""
        if not self.target.struck:
            return None
        times = [event.get("noticed", event["time"]) for event in self._events("failure")]
        return min(times) - min(self.target.struck) if times else None

    def _update(self) -> float | None:
        """Return the seconds from the last fault to the begin of a rank's second gradient after it.

        After a restart, gradients count that began after that.
        """
        path = self.run.parent.parent / GRADIENTS
        if not self.target.struck or not path.exists():
            return None
        begun, struck = np.fromfile(path, BEGUN), max(self.target.struck)
        since = max([struck, *(each["time"] for each in self._events("recovery") if each.get("what") == "restart")])
        after = [np.sort(begun["time"][(begun["rank"] == rank) & (begun["time"] > since)]) for rank in {*begun["rank"]}]
        return min((float(times[1]) - struck for times in after if len(times) > 1), default=None)

    def _counted(self, case: Case) -> tuple[int, int, int]:
        """Return the applications of samples that are missing, doubled, and missing without a report.

        Of each parameter there is one sample; what follows the samples' own has all.
        """
        last = max((self.run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
        counts = read_verified(last)
        expected = np.full(counts.size, float(case.epochs))
        expected[case.samples :] *= case.samples
        missing = expected - counts
        excused = self._reported(case, counts.size, last)
        own, of_all = missing[: case.samples].clip(0), missing[case.samples :].clip(0)
        return (
            int(max(own.sum(), of_all.max(initial=0))),
            int((-missing).clip(0).max()),
            int((missing - excused).clip(0).max()),
        )

    def _reported(self, case: Case, size: int, checkpoint: Path) -> np.ndarray:
        """Return what each parameter may lack according to the events, shape (size,)."""
        reported, portions = np.zeros(size), Portions(case.samples, BATCH, PORTION, seed=0, contiguous=True)
        for event in self._events("lost"):
            if event["chunk"] is None:
                continue  # That of a worker whose pushes can't be computed again: such jobs don't count.
            first, last = event["batches"]
            for number in range(first, last + 1):
                portion, batch = divmod(number, PORTION // BATCH)
                samples, own = portions.batches(portion)[batch], np.zeros(size)
                own[samples], own[case.samples :] = 1, len(samples)
                part = slice(*self._elements(event, checkpoint))
                reported[part] += own[part]
        return reported

    @staticmethod
    def _elements(event: Mapping[str, Any], checkpoint: Path) -> tuple[int, int]:
        """Return the first and the last element, exclusive, of the chunk that an event says is lost."""
        with h5py.File(checkpoint / f"shard-{event['shard']}.h5") as file:
            start, stop = int(file.attrs["start"]), int(file.attrs["stop"])
        chunk = CHUNK_BYTES // np.dtype(float).itemsize
        start += event["chunk"] * chunk
        return start, min(start + chunk, stop)


def read_events(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run; a line that a crash has left unfinished is none."""
    path, events = run / "events.jsonl", []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return events
