"""The results of the commands as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["evaluation", "packed", "replay", "summary"]


def summary(summary: Mapping[str, Any]) -> str:
    """Return the summary of a run as text."""
    staleness = "staleness mean {mean:.2f}, p50 {p50}, p99 {p99}, max {max}".format(**summary["staleness"])
    virtual = " of virtual time" if summary.get("virtual") else ""
    quality = _quality(summary, ("test_accuracy", "test_loss", "train_loss"))
    text = [
        *([quality] if quality else []),
        f"{summary['samples']} samples in {summary['seconds']:.1f} s{virtual}, "
        f"{summary['samples_per_second']:.0f} samples/s",
        f"{summary['algorithm']}: {_count(summary, 'servers')}, {_count(summary, 'replicas')}, {staleness}",
        f"{summary['run_dir']}: {summary['epochs']:.4g} epochs done",
    ]
    if summary.get("interrupted"):
        text[-1] += f"; go on with `mpidl train --resume {summary['run_dir']}`"
    return "\n".join(text)


def evaluation(result: Mapping[str, Any]) -> str:
    """Return the result of an evaluation as text."""
    return f"{_quality(result, ('test_accuracy', 'test_loss'))}\n{result['run_dir']}, step {result['step']}"


def packed(result: Mapping[str, Any]) -> str:
    """Return a description of a packed file as text."""
    text = "{file}: {train_samples} images to train with, {test_samples} to test with, {classes} classes"
    return text.format(**result)


def replay(result: Mapping[str, Any]) -> str:
    """Return the result of a replay as text."""
    same = "equal, bit for bit," if result["equal"] else f"differ by at most {result['difference']:.3g} from"
    return f"{result['gradients']} gradients: the parameters {same} those of {result['run_dir']}, step {result['step']}"


def _quality(result: Mapping[str, Any], names: Sequence[str]) -> str:
    called = {"test_accuracy": f"test {result.get('accuracy_name', 'accuracy')}"}
    known = [(called.get(name, name.replace("_", " ")), result[name]) for name in names if result.get(name) is not None]
    return ", ".join(f"{name} {value:.4f}" for name, value in known)


def _count(summary: Mapping[str, Any], name: str) -> str:
    return f"{summary[name]} {name if summary[name] != 1 else name.removesuffix('s')}"
