"""The calls of a run's loggers, whose errors don't stop the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpidl.errors import UsageError, quoted, raised
from mpidl.functions import call
from mpidl.launch.output import say
from mpidl.loggers import LOGGERS, Logger


def check(loggers: Any) -> None:
    """Raise UsageError for anything but a list of loggers and of names of loggers."""
    if not isinstance(loggers, tuple | list):
        raise UsageError(f"loggers: expected a list of loggers, found {quoted(loggers)}")
    for number, logger in enumerate(loggers):
        if not isinstance(logger, str):
            _check(f"loggers[{number}]", logger)


def _check(key: str, logger: Any) -> None:
    if isinstance(logger, type) or not isinstance(logger, Logger):
        raise UsageError(f"{key}: expected an object of a class derived from mpidl.Logger, found {quoted(logger)}")


class Loggers:
    """The loggers of one run: those that its configuration names, which are made here, and those `given` by a script.

    Raise UsageError if one can't be made.

    Attributes
    ----------
    tell : callable
        Shows a line.
    """

    def __init__(self, names: Sequence[str] = (), given: Sequence[Logger] = ()) -> None:
        self.tell: Callable[[str], object] = say
        self._waiting = [*(_made(number, name) for number, name in enumerate(names)), *given]
        self._active: list[Logger] = []
        self._errors: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    def start(self, directory: Path, config: Mapping[str, Mapping[str, Any]], samples: int, strict: bool) -> None:
        """Start all loggers; one that fails is left out or, if `strict`, raises UsageError."""
        while self._waiting:
            logger = self._waiting.pop(0)
            try:
                logger.start(directory, config, samples)
            except Exception as error:
                line = f"loggers: {type(logger).__name__} {raised(error)}"
                if strict:
                    raise UsageError(line) from error
                self.tell(f"{line}; the run continues without it")
            else:
                self._active.append(logger)

    def record(self, record: Mapping[str, Any]) -> None:
        """Pass on a record."""
        self._pass("record", record)

    def event(self, event: Mapping[str, Any]) -> None:
        """Pass on an event."""
        self._pass("event", event)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Let those that have started finish, once."""
        self._pass("finish", summary)
        self._active.clear()
        for name, number in self._errors.items():
            if number > 1:
                self.tell(f"loggers: {name} raised {number} errors and missed those records")
        self._errors.clear()

    def _pass(self, method: str, given: Mapping[str, Any] | None) -> None:
        for logger in self._active:
            try:
                getattr(logger, method)(None if given is None else dict(given))
            except Exception as error:
                name = type(logger).__name__
                self._errors[name] += 1
                if self._errors[name] == 1:
                    self.tell(f"loggers: {name} {raised(error)}; the run continues")


def _made(number: int, name: str) -> Logger:
    """Return the logger of a name in ``run.loggers``."""
    if name in LOGGERS:
        return LOGGERS[name]()
    logger: Logger = call(f"run.loggers[{number}]", name, "no arguments")
    _check(f"run.loggers[{number}]: {name}", logger)
    return logger
