"""The protocol of loggers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Logger(Protocol):
    """Follows a run: subclasses override the methods that they need; here, these do nothing.

    Only the coordinator's process calls them, while other ranks may wait for it: keep them short. A run doesn't begin
    if `start` raises an error. Later errors don't stop the run: a line reports them, and the next record still comes.
    """

    def start(self, directory: Path, config: Mapping[str, Mapping[str, Any]], samples: int) -> None:
        """Begin a run, or resume one that was stopped, or whose coordinator's process has died.

        Parameters
        ----------
        directory : Path
            The run's directory.
        config : mapping
            Its configuration as ``config.toml`` has it, with all defaults: a mapping of the keys of each section.
        samples : int
            Number of samples at which the run resumes; 0 if it is new. Earlier records with more samples are void, and
            will come again.
        """

    def record(self, record: Mapping[str, Any]) -> None:
        """Take a record of a report or an evaluation, as ``metrics.jsonl`` has it: None if a number isn't finite."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take an event of any rank, as ``events.jsonl`` has it; those since the last record come before a record."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """End.

        Parameters
        ----------
        summary : mapping or None
            The run's summary, whose item "interrupted" says whether the run was stopped by a signal; None if the run
            failed. A process that is killed doesn't call this.
        """
