"""A trained model from its checkpoint alone: all its tensors, and files of them that come back as they were."""

import h5py
import numpy as np
import pytest
import saved
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Box, Range
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import checkpoint_of, read
from mpidl.storage.files import scratch
from mpidl.storage.integrity import seal
from mpidl.storage.tensor_files import SUFFIXES, open_file, save
from mpidl.storage.writer import CheckpointIndex, save_index
from tensor_files import KINDS, NO_TORCH, POSSIBLE

ALIASES = {"2-dense/weight": "1-dense/weight"}
CONSTANTS = {"frozen/weight": np.arange(6.0).reshape(2, 3), "scale_": np.float32(3)}
BUFFERS = {"seen": np.int64(7)}


@pytest.fixture
def run(tmp_path):
    """Return the directory of a run with a checkpoint that has everything, and its parameters."""
    checkpoints = tmp_path / "checkpoints"
    unfinished = scratch(checkpoints, saved.POSITION.step)
    parameters = saved.save_files(unfinished)["parameters"]
    with h5py.File(unfinished / saved.OTHER, "r+") as file:
        file["buffers/seen"] = BUFFERS["seen"]
    seal(unfinished / saved.OTHER)
    save_index(unfinished, CheckpointIndex(saved.LAYOUT, 3, saved.POSITION, "[run]\n", "0.0.1", {}, [saved.OTHER]))
    index = checkpoints / "42" / "index.h5"
    with h5py.File(index, "r+") as file:
        file.attrs["aliases"] = '{"2-dense/weight": "1-dense/weight"}'
        for name, values in CONSTANTS.items():
            file[f"constants/{name}"] = values
    seal(index)
    return tmp_path, parameters


def test_a_checkpoint_has_everything(run):
    directory, parameters = run
    trained = read(checkpoint_of(directory))
    expected = saved.LAYOUT.views(parameters)
    assert trained.parameters.keys() == expected.keys()
    assert trained.aliases == ALIASES
    everything = expected | {"2-dense/weight": expected["1-dense/weight"]} | CONSTANTS | BUFFERS
    assert trained.tensors.keys() == everything.keys()
    for name, values in everything.items():
        found = trained.tensors[name]
        assert (found.shape, found.dtype) == (np.shape(values), np.asarray(values).dtype), name
        np.testing.assert_array_equal(found, values)


def test_a_checkpoint_of_parameters_only(tmp_path):
    saved.save(tmp_path / "checkpoints")
    trained = read(checkpoint_of(tmp_path, 42))
    assert (trained.aliases, trained.constants, trained.buffers) == ({}, {}, {})


def test_a_checkpoint_that_is_not_there(run):
    with pytest.raises(UsageError, match=r"no checkpoint of step 7, there are those of 42$"):
        checkpoint_of(run[0], 7)
    with pytest.raises(UsageError, match=r"absent: no best checkpoint: only runs with run.patience or validation"):
        checkpoint_of(run[0] / "absent", "best")
    with pytest.raises(UsageError, match=r"absent: no checkpoint to read in "):
        checkpoint_of(run[0] / "absent")


def test_a_damaged_checkpoint(run):
    path = run[0] / "checkpoints" / "42" / "shard-1.h5"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(MpidlError, match=r"42: shard-1\.h5 is damaged \(checksum\)$"):
        checkpoint_of(run[0], 42)


@pytest.mark.parametrize("kind", KINDS)
def test_files_have_what_the_checkpoint_has(run, kind):
    tensors = read(checkpoint_of(run[0])).tensors
    path = run[0] / f"model{SUFFIXES[kind][0]}"
    save(path, kind, tensors, {"step": "42"})
    file = open_file(path)
    assert file.shapes == {name: array.shape for name, array in tensors.items()}
    for name, array in tensors.items():
        assert file.read(name).dtype == array.dtype
        np.testing.assert_array_equal(file.read(name), array)
        box = Box(tuple(Range(extent // 2, extent) for extent in array.shape))
        np.testing.assert_array_equal(file.part(name, box), array[box.slices(Box.whole(array.shape))])
    assert not list(run[0].glob("*.partial"))


@pytest.mark.parametrize(
    ("kind", "function"),
    [("safetensors", "safetensors.numpy.save_file"), pytest.param("torch", "torch.save", marks=NO_TORCH)],
)
def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch, kind, function):
    def fail(tensors, path, **options):
        path.write_bytes(b"half of it")
        raise RuntimeError("disk\nfull")

    monkeypatch.setattr(function, fail)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/model: can't be written \(disk full\)$"):
        save(tmp_path / "model", kind, {"weight": np.ones(3)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_run_and_a_checkpoint_are_files_of_tensors(run):
    for path in (run[0], run[0] / "checkpoints" / "42"):
        file = open_file(path)
        assert file.shapes == {part.name: part.shape for part in saved.LAYOUT} | {
            name: np.shape(values) for name, values in (CONSTANTS | BUFFERS).items()
        }
        np.testing.assert_array_equal(file.read("0-conv/weight"), saved.LAYOUT.views(run[1])["0-conv/weight"])
        np.testing.assert_array_equal(file.read("scale_"), 3)
        np.testing.assert_array_equal(file.read("seen"), 7)
    assert Checkpoint(path).size == saved.LAYOUT.size


@given(
    kind=st.sampled_from(sorted(POSSIBLE)),
    tensors=st.dictionaries(
        st.sampled_from(["0-dense/weight", "layers.0.weight", "file", "args", "name/of/many", "ü"]),
        st.sampled_from(["float32", "float64", "int64"]).flatmap(
            lambda dtype: arrays(dtype, array_shapes(min_dims=0, min_side=1, max_side=5))
        ),
        min_size=1,
    ),
)
def test_any_tensors_come_back(tmp_path_factory, kind, tensors):
    path = tmp_path_factory.mktemp("any") / f"model{SUFFIXES[kind][0]}"
    # Neither order nor strides are a tensor's own.
    save(path, kind, {name: np.array(array, order="F") for name, array in tensors.items()}, {})
    file = open_file(path)
    assert file.shapes == {name: array.shape for name, array in tensors.items()}
    for name, array in tensors.items():
        assert file.read(name).dtype == array.dtype
        np.testing.assert_array_equal(file.read(name), array)


@pytest.mark.parametrize(
    "suffix", [".safetensors", ".npz", pytest.param(".pt", marks=NO_TORCH), pytest.param(".pth", marks=NO_TORCH)]
)
@pytest.mark.parametrize("content", [b"", b"no tensors at all" * 9])
def test_a_damaged_file_is_one_line(tmp_path, suffix, content):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"^{path}: not a readable {suffix} file \([^\n]+\)$"):
        open_file(path)


def test_foreign_files_are_one_line(tmp_path):
    torch = pytest.importorskip("torch")

    torch.save({"epoch": 3, "state_dict": {}}, tmp_path / "nested.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(tmp_path / "script.pt")
    module = "a whole module or other objects, never unpickled here, expected a state_dict, as by torch.save(module."
    torch.save([1, 2], tmp_path / "list.pt")
    np.save(tmp_path / "array.npz", np.ones(3))
    (tmp_path / "array.npz.npy").rename(tmp_path / "array.npz")
    (tmp_path / "model.bin").touch()
    for name, line in (
        ("nested.pt", "'epoch' is an int, expected a state_dict: tensors by name, such as its 'state_dict' alone"),
        *((name, f"{module}state_dict(), ...)") for name in ("module.pt", "old.pt", "script.pt")),
        ("list.pt", "a list, expected a state_dict: tensors by name"),
        ("array.npz", "not a readable .npz file (File is not a zip file)"),
        ("model.bin", "expected .safetensors, .npz, .pt, .pth or the directory of a run"),
        ("absent.npz", "no such file"),
    ):
        with pytest.raises(UsageError) as caught:
            open_file(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: {line}"


def test_no_code_runs_in_a_file(tmp_path):
    import pickle

    class Touch:
        def __reduce__(self):
            return (type(tmp_path).touch, (tmp_path / "touched",))

    torch = pytest.importorskip("torch")

    torch.save({"weight": Touch()}, tmp_path / "model.pt")
    (tmp_path / "model.npz").write_bytes(pickle.dumps(Touch()))
    for name in ("model.pt", "model.npz"):
        with pytest.raises(UsageError, match=r"not a readable .npz|never unpickled here"):
            open_file(tmp_path / name)
    assert not (tmp_path / "touched").exists()


def test_half_precision(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = {"a": torch.full((2, 3), 1.5, dtype=torch.bfloat16), "b": torch.ones(3, dtype=torch.float16)}
    torch.save(tensors, tmp_path / "model.pt")
    save_file(tensors, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(open_file(tmp_path / "model.pt").read("a"), np.full((2, 3), 1.5))
    file = open_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(file.read("b"), np.ones(3))
    with pytest.raises(UsageError, match="tensor 'a' is of BF16, expected floats of 16, 32 or 64 bits"):
        file.read("a")
