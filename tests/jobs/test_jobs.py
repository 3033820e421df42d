"""The jobs that come with the package: all are valid, and the paper's networks have the paper's sizes."""

from pathlib import Path

import numpy as np
import pytest

from mpidl.config import from_dict, load, toml
from mpidl.runs.plan import as_text, plan

JOBS = Path(__file__).parents[2] / "jobs"
PATHS = sorted(JOBS.glob("*.toml"))


def idx(array):
    return np.array([0x0800 + array.ndim, *array.shape], ">u4").tobytes() + array.tobytes()


@pytest.fixture
def files(tmp_path):
    """A directory with files like those of Fashion-MNIST and CIFAR-10, of few samples."""
    for name in ("train", "t10k"):
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(np.zeros((20, 28, 28), np.uint8)))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.arange(20, dtype=np.uint8) % 10))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(b"".join(bytes([label]) + bytes(3072) for label in range(10)))
    return tmp_path


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_every_job_can_be_planned(path, files, monkeypatch):
    monkeypatch.chdir(JOBS.parent)
    if path.stem.startswith("torch"):
        pytest.importorskip("torch")
    on_disk = toml.read(path)["data"].get("source") in ("idx", "cifar10")
    described = plan(load(path, [f"data.path={files}"] if on_disk else []), ranks=4)
    if described["layers"] is not None:  # of modules, only the names and shapes of the tensors are known
        assert described["parameters"] == sum(layer["parameters"] for layer in described["layers"])
    assert len(described["roles"]) == 4
    assert as_text(described).startswith(f"{path.stem}: ")


def test_the_speech_network():
    described = plan(load(JOBS / "distbelief_speech.toml"))
    assert described["parameters"] == 41_777_152
    assert [layer["shape"] for layer in described["layers"]] == [(2560,)] * 4 + [(8192,)]


@pytest.mark.parametrize(
    ("maps", "stride", "pooling"),
    [
        (8, 2, [(2, 1), (2, 2), (2, 2)]),
        (16, 1, [(2, 2), (2, 2), (2, 2)]),
        (16, 1, [(2, 1), (2, 2), (2, 2)]),
        (36, 1, [(2, 1), (2, 1), (6, 6)]),
    ],
)
def test_the_image_network_grows_as_its_comment_says(maps, stride, pooling):
    path = JOBS / "distbelief_image.toml"
    values = toml.read(path)
    filters, pools = (
        [layer for layer in values["model"]["layer"] if layer["type"] == kind]
        for kind in ("locally_connected2d", "l2_pool2d")
    )
    for layer in filters:
        layer["channels"] = maps
    filters[0]["stride"] = stride
    for layer, (size, step) in zip(pools, pooling, strict=True):
        layer["size"], layer["stride"] = size, step
    described = plan(from_dict(values))
    row = rf"{maps}    {stride}, 1, 1" + ";".join(f"  {size}, {step}" for size, step in pooling).rjust(34)
    (line,) = [line for line in path.read_text().splitlines() if " ".join(row.split()) in " ".join(line.split())]
    assert f" {described['parameters']:,} " in line
