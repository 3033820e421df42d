"""A run that is on disk, given to TensorBoard as if it ran now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from mpidl.errors import UsageError
from mpidl.history import Run
from mpidl.history.lines import Lines
from mpidl.launch.output import say
from mpidl.loggers import Logger, TensorBoard
from mpidl.schema import choose


def convert(runs: Sequence[Run], to: str, output: Path | None = None) -> list[Path]:
    """Write the files of runs for another tool, and return their directories.

    Parameters
    ----------
    runs : sequence of Run
    to : str
        "tensorboard".
    output : Path, optional
        The directory of one run's files, or of a directory for each of several; by default ``tensorboard`` in a run's
        own.

    Raises
    ------
    UsageError
        tensorboardX isn't installed, there is something at that place already, or it can't be written.
    """
    choose({"tensorboard": TensorBoard}, "--to", to)
    directories = [each.directory / to if output is None else output for each in runs]
    if output is not None and len(runs) > 1:
        directories = [output / name for name in _distinct([run.name for run in runs])]
    for directory in directories:
        if directory.is_symlink() or (directory.exists() and not (directory.is_dir() and not any(directory.iterdir()))):
            raise UsageError(f"{directory}: exists and isn't an empty directory, expected another one by -o")
    for run, directory in zip(runs, directories, strict=True):
        try:
            replay(run, TensorBoard(directory))
        except OSError as error:
            raise UsageError(f"{directory}: can't be written ({error.strerror})") from None
    return directories


def replay(run: Run, logger: Logger) -> None:
    """Give a logger the records and events of a run in the order of their times, and its summary.

    Where the run was resumed, the logger starts again. Lines that are neither records nor events are left out.
    """
    events, last = list(_events(run)), 0
    events.reverse()
    logger.start(run.directory, run.config, last)

    def start_again(samples: int) -> None:
        logger.finish(None)
        logger.start(run.directory, run.config, samples)

    def tell(event: Mapping[str, Any]) -> int:
        samples = last
        if event["event"] == "resume" and isinstance(event.get("samples"), int | float):
            start_again(samples := int(event["samples"]))
        logger.event(event)
        return samples

    for record in _all(run, run.record_lines()):
        clock, now = (0, record["unix_time"]) if "unix_time" in record else (1, record.get("time", 0.0))
        while events and events[-1][clock] <= now:
            last = tell(events.pop()[2])
        logger.record(record)
        last = record["samples"]
    while events:
        tell(events.pop()[2])
    logger.finish(run.summary)


def _events(run: Run) -> Iterator[tuple[float, float, dict[str, Any]]]:
    """Yield a run's events, each with its time, and the time of training if that is known of it or of one before."""
    virtual = float("-inf")
    for event in _all(run, run.event_lines()):
        virtual = virtual if event.get("virtual_time") is None else event["virtual_time"]
        if event.get("time") is not None:
            yield event["time"], virtual, event


def _all(run: Run, lines: Lines) -> Iterator[dict[str, Any]]:
    """Yield the objects in the lines of a run's file, and at the end say what was left out."""
    yield from chain.from_iterable(lines.blocks())
    for note in lines.notes:
        say(f"{run.directory}: {note}")


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, repeats numbered."""
    found: list[str] = []
    for name in names:
        number = names[: len(found)].count(name) + 1
        found.append(name if number == 1 else f"{name}-{number}")
    return found
