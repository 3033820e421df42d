"""A trained model in Python, ``mpidl.load``, and in a format of the field: ``mpidl export``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mpidl.config import ModelSection
from mpidl.errors import UsageError, nearest, quoted
from mpidl.job.build import build_network
from mpidl.nn import Network
from mpidl.nn.onnx import to_onnx
from mpidl.parameters import Range
from mpidl.paths import check_new, run_directory
from mpidl.schema import Natural, build, convert
from mpidl.sparse.saved import dense, give_rows, ids_and_rows, weights
from mpidl.storage.checkpoint import STATE, Checkpoint
from mpidl.storage.checkpoints import Trained, checkpoint_of, read
from mpidl.storage.tensor_files import SUFFIXES, save


def load(run: str | Path, step: int | str | None = None) -> Network | Trained:
    """Return the trained model of a run, from its checkpoint alone.

    Parameters
    ----------
    run : str or Path
        Directory of the run, such as ``"runs/digits"``.
    step : int or "best", optional
        The checkpoint; the newest undamaged one by default.

    Returns
    -------
    Network or Trained
        The network, if ``[[model.layer]]`` describes it. Else the model's names and arrays: a `Trained`, whose
        `parameters`, `constants`, `buffers`, `tables` and, with all but the tables, `tensors` are dicts.

    Raises
    ------
    UsageError
        There is no such checkpoint.
    MpidlError
        It is damaged or can't be read.

    Examples
    --------
    >>> network = mpidl.load("runs/digits")
    >>> outputs = network.predict(inputs)
    >>> arrays = mpidl.load("runs/resnet", "best").tensors
    """
    run = Path(run)
    if run.is_file():
        raise UsageError(f"{run}: a file, expected the directory of a run (mpidl.config.load reads a configuration)")
    checkpoint = checkpoint_of(run_directory(run, "checkpoints"), step)
    network = network_of(checkpoint)
    if network is None:
        return read(checkpoint)
    give_rows(network, checkpoint)
    return network


def network_of(checkpoint: Checkpoint) -> Network | None:
    """Return the network of a checkpoint with its parameters; None if no ``[[model.layer]]`` describes the model.

    Raise UsageError if the checkpoint is of another version, which built other networks from the same section, and
    MpidlError if a file can't be read.
    """
    section = checkpoint.sections.get("model", {})
    if "layer" not in section:
        return None
    shape = checkpoint.data.get("data: shape of a sample", "")
    seed = convert(checkpoint.sections.get("run", {}).get("seed", 0), Natural, "run.seed")
    extents = tuple(map(int, re.findall(r"\d{1,18}", shape)))
    network = build_network(build(ModelSection, "model", section), extents, seed)
    if {tensor.name: tensor.shape for tensor in network.layout} != checkpoint.shapes:
        raise UsageError(f"{checkpoint.path}: not the tensors of the network that its configuration describes")
    network.parameters = checkpoint.read(checkpoint.trained, Range(0, network.layout.size), network.layout)
    return network


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
        from mpidl.torch.module_state import is_extra_state

        tensors |= {name: values for name, values in checkpoint.kept_by(0, STATE).items() if is_extra_state(name)}
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
