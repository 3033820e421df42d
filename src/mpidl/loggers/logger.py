"""The protocol of loggers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Logger(Protocol):
    """Follows a run: a subclass has those of these methods that it needs; here they do nothing.

    They are called in the process of the coordinator alone, while other ranks may wait for it: keep them short. A run
    doesn't begin if `start` raises an error. After that, an error ends no run: a line says what it was, and the next
    record comes all the same.
    """

    def start(self, directory: Path, config: Mapping[str, Mapping[str, Any]], samples: int) -> None:
        """Begin, or go on with a run that was stopped, or whose coordinator's process has died.

        Parameters
        ----------
        directory : Path
            The run's directory.
        config : mapping
            Its configuration as ``config.toml`` has it, with all defaults: a mapping of the keys of each section.
        samples : int
            The samples after which the run goes on; 0 if it is new. Later records that were given before are void: they
            come again.
        """

    def record(self, record: Mapping[str, Any]) -> None:
        """Take a record of a report or an evaluation, as ``metrics.jsonl`` has it: None stands for no finite number."""

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
