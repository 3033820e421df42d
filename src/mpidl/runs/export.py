"""A trained model in a format of the field: ``mpidl export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpidl.errors import UsageError, nearest, quoted
from mpidl.nn.onnx import to_onnx
from mpidl.paths import check_new
from mpidl.runs.load import network_of
from mpidl.sparse.saved import dense, ids_and_rows, weights
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import checkpoint_of, read
from mpidl.storage.tensor_files import SUFFIXES, save

#: The suffix of a file of each format.
FORMATS = {kind: suffixes[0] for kind, suffixes in SUFFIXES.items()} | {"onnx": ".onnx"}


def export(
    run: Path, to: str, step: int | str | None = None, file: Path | None = None, force: bool = False
) -> dict[str, Any]:
    """Write the trained model of a run to a file, from a checkpoint alone: no model and no data are needed.

    Parameters
    ----------
    run : Path
        ``runs/NAME``.
    to : str
        A format in `FORMATS`.
    step : int or "best", optional
        The checkpoint; the newest undamaged one by default.
    file : Path, optional
        ``runs/NAME/model`` with the suffix of the format by default.
    force : bool
        Whether to replace the file if it exists.

    Returns
    -------
    dict
        run_dir, step, format, file, tensors (their number), bytes (of the file).

    Raises
    ------
    UsageError
        There is no such checkpoint or format, a package isn't installed, the file exists or can't be written, a layer
        has no operator in ONNX, or a table is larger than the memory or, in a format of weights, takes any id.
    MpidlError
        The checkpoint is damaged or can't be read.
    """
    if to not in FORMATS:
        raise UsageError(f"--to: unknown format {quoted(to)}{nearest(to, list(FORMATS))}")
    checkpoint = checkpoint_of(run, step)
    file = run / f"model{FORMATS[to]}" if file is None else file
    check_new(file, force)
    tensors = to_onnx(_network(checkpoint), file) if to == "onnx" else _save(checkpoint, to, file)
    return {
        "run_dir": str(run),
        "step": checkpoint.position.step,
        "format": to,
        "file": str(file),
        "tensors": tensors,
        "bytes": file.stat().st_size,
    }


def _save(checkpoint: Checkpoint, to: str, file: Path) -> int:
    tensors, position = read(checkpoint).tensors, checkpoint.position
    if to == "torch":
        # A table's name is that of a module's parameter, or of a layer.
        of = "/weight" if "layer" in checkpoint.sections.get("model", {}) else ""
        for spec, values in zip(checkpoint.tables, weights(checkpoint, to).values(), strict=True):
            tensors |= dict.fromkeys((f"{spec.name}{of}", *spec.aliases), values)
        from mpidl.torch import extra_state

        tensors |= {name: values for name, values in checkpoint.state().items() if extra_state.is_name(name)}
    else:
        tensors |= ids_and_rows(checkpoint)
    save(file, to, tensors, {"step": str(position.step), "epoch": f"{position.epoch:g}"})
    return len(tensors)


def _network(checkpoint: Checkpoint) -> Any:
    network = network_of(checkpoint)
    if network is None:
        expected = "expected a network of [[model.layer]]; torch.onnx exports modules of PyTorch"
        raise UsageError(f"--to onnx: {checkpoint.path} is of a model of your own, {expected}")
    return dense(network, weights(checkpoint, "onnx"))
