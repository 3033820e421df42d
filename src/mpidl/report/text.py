"""Numbers, tables, events and the results of commands as text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from mpidl.errors import escaped, printable, shown
from mpidl.launch import environment, script
from mpidl.launch.output import say
from mpidl.paths import argument, shell_word

PREFIXES = ("", "k", "M", "G", "T", "P")
#: Details of an event that aren't told, and most characters of one.
LEFT_OUT = ("time", "event", "rank", "role", "virtual_time", "traceback")
LONGEST = 60


def quantity(value: float, unit: str) -> str:
    """Return a quantity with three digits and a decimal prefix, such as ``"167 MB"``."""
    power = 0
    while abs(value) >= 999.5 and power < len(PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g} {PREFIXES[power]}{unit}".rstrip()


def duration(seconds: float) -> str:
    """Return a duration with three digits, such as ``"1.5 ms"``; of minutes and hours from two on."""
    for unit, length, least in (("h", 3600.0, 2), ("min", 60.0, 2), ("s", 1.0, 1), ("ms", 1e-3, 1), ("us", 1e-6, 1)):
        if seconds >= least * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def clock(seconds: float) -> str:
    """Return a duration of up to 10^12 seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(min(max(0.0, seconds), 1e12)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def loss(value: float | None) -> str:
    """Return a loss, or another figure of any magnitude, as text; JSON has None for what is not finite."""
    return "not finite" if value is None else f"{value:.4g}"


def size(parameters: int, nbytes: int) -> str:
    """Return the size of a model as text, such as ``"41,777,152 parameters (167 MB)"``."""
    return f"{counted(parameters, 'parameter')} ({quantity(nbytes, 'B')})"


def counted(number: int, what: str) -> str:
    """Return a number of things as text, such as ``"1 server"`` or ``"2 servers"``."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def titled(rows: Sequence[Mapping[str, str]], left: int = 0) -> list[str]:
    """Return rows of cells by the titles of their columns as lines of text.

    The first `left` columns are aligned left and the others right; empty ones are omitted.
    """
    titles = [title for title in rows[0] if any(row[title] for row in rows)]
    cells = [titles, *([row[title] for title in titles] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


#: Data that models are evaluated on.
SPLITS = ("test", "validation")


def summary(summary: Mapping[str, Any]) -> str:
    """Return the summary of a run as text."""
    staleness = "staleness mean {mean:.2f}, p50 {p50}, p99 {p99}, max {max}".format(**summary["staleness"])
    virtual = " of virtual time" if summary.get("virtual") else ""
    cut = f" of {summary['partitions']} partitions" if summary.get("partitions", 1) > 1 else ""
    sizes = f"{counted(summary['servers'], 'server')}, {counted(summary['replicas'], 'replica')}{cut}"
    unused = ""
    if dropped := summary.get("dropped"):
        unused = f", {dropped / sum(summary['staleness_histogram']):.0%} of pushes dropped"
    if count := summary.get("gradients_stopped"):
        saved = summary["seconds_saved"]
        unused += f", {counted(count, 'gradient')} stopped" + f", {duration(saved)} saved" * (saved > 0)
    text = [
        *_quality(summary, beside=["train_loss"]),
        *_objective(summary),
        *_ending(summary),
        f"{summary['samples']} samples in {summary['seconds']:.1f} s{virtual}, "
        f"{summary['samples_per_second']:.0f} samples/s",
        f"{summary['algorithm']}: {sizes}, {staleness}{unused}",
        *_incidents(summary),
        f"{escaped(summary['run_dir'])}: {_length(summary)} done",
    ]
    if summary.get("interrupted") and not virtual:
        text[-1] += f"; {continuing('train', summary['run_dir'], summary['ranks'])}"
    return "\n".join(text)


def _incidents(summary: Mapping[str, Any]) -> list[str]:
    if not summary.get("failures"):
        return []
    recoveries = summary["recoveries"]
    text = f"{counted(summary['failures'], 'failure')}, {recoveries} recover{'y' if recoveries == 1 else 'ies'}"
    if "goodput" in summary:
        text += f", of which {counted(summary['restarts'], 'restart')}; "
        text += f"{summary['samples_again']} samples were computed again: goodput {summary['goodput']:.0f} samples/s"
    return [text]


def continuing(command: str, run_dir: str | Path, ranks: int) -> str:
    """Return how ``mpidl train`` or ``mpidl run`` continues a run on as many ranks as it had."""
    return f"continue with `mpidl {command} --resume {as_word(str(run_dir))}{f' -n {ranks}' if ranks > 1 else ''}`"


def resumption(run_dir: str, name: str) -> str:
    """Return how a script continues its run, which was to have a name and is in a directory."""
    if script.current() is not None:
        return continuing("run", run_dir, environment.world().size)
    own = PurePath(run_dir).name
    return f"run the script with {'' if own == name else f'name={own!r}, '}resume=True to continue"


def died(rank: int, role: str, details: Mapping[str, Any]) -> str:
    """Return the line about the death of a rank's process, given the details of the event."""
    code = details.get("code")
    cause = details["signal"] or (code and f"exit code {code}")
    cause = f", {cause}" if cause else ""
    return f"rank {rank} ({role}) has died: process {details['pid']} on {details['host']}{cause}"


def replaced(rank: int, role: str, details: Mapping[str, Any]) -> str:
    """Return the line about a rank that another process has taken over, given the details of the event."""
    lost = ", ".join(counted(count, name.removesuffix("s")) for name, count in details["lost"].items()) or "nothing"
    taken = f"taken over by the process of rank {details['by']} in {duration(details['seconds'])}"
    return f"rank {rank} ({role}) goes on, {taken}; lost: {lost}"


def in_words(event: Mapping[str, Any]) -> str:
    """Return what an event says, as one line without control characters."""
    return printable(_told(event))


def _told(event: Mapping[str, Any]) -> str:
    kind, rank, role = (event.get(name) for name in ("event", "rank", "role"))
    # An event of another kind, such as that of a simulation, lacks what these lines say.
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        if kind == "failure" and isinstance(cause := event.get("cause"), str):
            return f"rank {rank} ({role}) failed: {cause}"
        if kind == "failure":
            return died(rank, role, event)  # type: ignore[arg-type]
        if kind == "recovery":
            return replaced(rank, role, event)  # type: ignore[arg-type]
    told = {name: value for name, value in event.items() if name not in LEFT_OUT and value is not None}
    details = ", ".join(f"{name} {shown(_value(value), LONGEST)}" for name, value in told.items())
    of = "" if role in (None, "coordinator") else f" ({role})"
    return f"{kind}{of}{': ' * bool(details)}{details}"


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def time_of_day(seconds: Any) -> str:
    """Return a time in seconds since the epoch as local time; "" if it is none, or none that a clock shows."""
    with suppress(OverflowError, ValueError, OSError):
        if isinstance(seconds, int | float):
            return time.strftime("%H:%M:%S", time.localtime(seconds))
    return ""


def as_word(run_dir: str) -> str:
    """Return a run's directory as a word of a command line for a shell."""
    return shell_word(argument(Path(run_dir)))


def warn_unchanged(summary: Mapping[str, Any]) -> None:
    """Warn on stderr that a run has pushed gradients without changing its parameters."""
    if summary["pushes"]:
        say(f"no parameter has changed in {summary['pushes']} pushes: is the rate 0, or every gradient?")


def evaluation(result: Mapping[str, Any]) -> str:
    """Return the result of an evaluation as text."""
    return "\n".join([*_quality(result), _origin(result)])


def exported(result: Mapping[str, Any]) -> str:
    """Return a description of an exported model as text."""
    return (
        f"{escaped(result['file'])}: {result['tensors']} tensors, {quantity(result['bytes'], 'B')}\n{_origin(result)}"
    )


def predicted(result: Mapping[str, Any]) -> str:
    """Return a description of a file of outputs as text."""
    shape = ", ".join(map(str, (result["samples"], *result["shape"])))
    return f"{escaped(result['file'])}: outputs ({shape})\n{_origin(result)}"


def _origin(result: Mapping[str, Any]) -> str:
    return f"{escaped(result['run_dir'])}, step {result['step']}"


def packed(result: Mapping[str, Any]) -> str:
    """Return a description of a packed file as text."""
    text = "{file}: {train_samples} images to train with, {test_samples} to test with, {classes} classes"
    return text.format(**{**result, "file": escaped(result["file"])})


def _quality(result: Mapping[str, Any], beside: Sequence[str] = ()) -> list[str]:
    """Return lines for the test data, with other figures, and for their metrics; likewise for validation data."""
    lines = []
    for split, others in zip(SPLITS, (beside, ()), strict=True):
        first = [f"{split}_accuracy", f"{split}_loss"]
        metrics = [name for name in result if name.startswith(f"{split}_") and name not in first]
        lines += [_figures(result, names) for names in ([*first, *others], metrics)]
    return [line for line in lines if line]


def _figures(result: Mapping[str, Any], names: Sequence[str]) -> str:
    called = {f"{split}_accuracy": f"{split} {result.get('accuracy_name', 'accuracy')}" for split in SPLITS}
    known = [name for name in names if result.get(name) is not None]
    texts = {name: f"{result[name]:.4f}" if name.endswith("_accuracy") else loss(result[name]) for name in known}
    return ", ".join(f"{called.get(name, escaped(name.replace('_', ' ')))} {text}" for name, text in texts.items())


def _objective(summary: Mapping[str, Any]) -> list[str]:
    """Return a line on the last iteration of an algorithm that iterates."""
    last = summary.get("iteration")
    return [] if last is None else [f"objective {loss(last['objective'])}, gradient norm {loss(last['gradient_norm'])}"]


def _length(summary: Mapping[str, Any]) -> str:
    if (last := summary.get("iteration")) is None:
        return f"{summary['epochs']:.4g} epochs"
    return f"{last['number']} iterations, {last['total_evaluations']} evaluations"


def _ending(summary: Mapping[str, Any]) -> list[str]:
    """Return lines on decisions by evaluations: an early end of the run, and its best checkpoint."""
    lines = [f"stopped early: {summary['stopped']}"] if summary.get("stopped") else []
    if summary.get("best_step") is not None:
        figure = next(name for name in summary if name.startswith(tuple(f"best_{split}_" for split in SPLITS)))
        named, epochs = figure.replace("_", " "), f"{summary['best_epoch']:.4g} epochs"
        lines.append(f"{named} {summary[figure]:.4g} after {epochs}: step {summary['best_step']}")
    return lines
