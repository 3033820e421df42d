"""Names of tensors that HDF5 reads in another way, or can't hold at all: they come back from every file."""

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mpidl
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters import Layout
from mpidl.runs.load import export
from mpidl.storage.files import datasets, places
from mpidl.storage.tensor_files import open_file

#: Among them those of which one is a group in another's path, and those that the escapes of others look like.
ODD = [
    *(
        "O",
        "O/H",
        "O/H/I",
        "O%2FH",
        "O%252FH",
        "O/H%2FI",
        "a\0b",
        "a%00b",
        "",
        "%",
        "%25",
        ".",
        "%2E",
        "./a",
        "a/.",
        "..",
    ),
    *("../a", "/", "//", "/a", "a/", "a//b", "a/b", "a/./b", "x" * 70_000, "größe", "大/小", " ", "\n", "a.b", "rule"),
]
parts = st.lists(st.sampled_from(["", ".", "a", "b", "%", "%2F", "%25", "2F", "__", "\0", "é"]), max_size=4)


def plain(name):
    """Tell whether a name is a path of HDF5 as it is."""
    return not {"", "."} & set(name.split("/")) and "\0" not in name and "%" not in name


@given(names=st.sets(parts.map("/".join) | parts.map("".join)))
@example(names=set(ODD))
def test_names_come_back_from_a_file(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("names") / "file.h5"
    numbers = {name: number for number, name in enumerate(sorted(names))}
    with h5py.File(path, "w") as file:
        for name, place in places(names).items():
            file[f"group/{place}"] = numbers[name]
    assert {name: item[()] for name, item in datasets(path, "group")} == numbers


@given(names=st.sets(parts.map("/".join).filter(plain)))
def test_a_name_is_a_path_where_it_can_be(names):
    expected = {name: name for name in names if not any(name.startswith(f"{other}/") for other in names)}
    assert {name: places(names)[name] for name in expected} == expected


class Odd(CompleteModel):
    """A model whose parameters, constants and buffers have odd names, the loss being half the squared distance to 3."""

    dtype = np.dtype("float64")

    def __init__(self):
        self.layout = Layout([(name, (2,)) for name in ODD])
        self.parameters = np.arange(self.layout.size, dtype="float64")
        self._constants = {name: np.full(1, number) for number, name in enumerate(ODD)}
        self._buffers = {name: np.full(3, number) for number, name in enumerate(ODD)}

    def loss_and_gradient(self, batch):
        return float(((self.parameters - 3) ** 2).sum() / 2), self.parameters - 3

    def evaluate(self, batch):
        return Evaluation(self.loss_and_gradient(batch)[0] * batch.total, float("nan"))

    def constants(self):
        return self._constants

    def load_constants(self, constants):
        self._constants = dict(constants)

    def buffers(self):
        return self._buffers

    def load_buffers(self, buffers):
        self._buffers = dict(buffers)


def data():
    return mpidl.Arrays(*[(np.zeros((8, 2)), np.zeros((8, 1)))] * 2)


def train(model, tmp_path, **options):
    options = {"rule": mpidl.Adagrad(0.1), "name": "run", "dir": tmp_path, "batch": 2, "device": "cpu"} | options
    return mpidl.train(model, data(), **options)


def test_a_run_with_odd_names_resumes_and_is_read(tmp_path):
    whole, model = Odd(), Odd()
    train(whole, tmp_path, name="whole", steps=6)
    train(model, tmp_path, steps=3)
    again = Odd()
    train(again, tmp_path, resume=True, steps=6)
    np.testing.assert_array_equal(again.parameters, whole.parameters)
    loaded = mpidl.load(tmp_path / "run")
    parameters = whole.layout.views(whole.parameters)
    for found, expected in (
        *((loaded.parameters, parameters), (loaded.constants, whole.constants()), (loaded.buffers, whole.buffers())),
        (_all(open_file(tmp_path / "run")), whole.buffers()),
    ):
        assert set(found) == set(ODD)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def _all(file):
    return {name: file.read(name) for name in file.shapes}


class Named(Odd):
    """A model with parameters of these names alone."""

    def __init__(self, *names):
        super().__init__()
        self.layout = Layout([(name, (2,)) for name in names])
        self.parameters = np.arange(self.layout.size, dtype="float64")
        self._constants, self._buffers = {}, {}


@pytest.mark.parametrize("kind", ["npz", "safetensors", "torch"])
def test_exports_have_the_names_or_say_in_one_line_that_they_cant(tmp_path, kind):
    pytest.importorskip("torch" if kind == "torch" else "numpy")
    refused = {"npz": ["a\0b", "x" * 70_000], "safetensors": ["__metadata__"], "torch": []}[kind]
    model = Named(*(name for name in ODD if name not in refused))
    train(model, tmp_path, steps=1)
    path = tmp_path / f"model{'.pt' if kind == 'torch' else f'.{kind}'}"
    export(tmp_path / "run", kind, file=path)
    found = _all(open_file(path))
    for name, values in model.layout.views(model.parameters).items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    for number, name in enumerate(refused):
        train(Named("a", name), tmp_path, steps=1, name=f"refused{number}")
        with pytest.raises(mpidl.UsageError, match=f"{kind} can't have a tensor named .*, expected .* or "):
            export(tmp_path / f"refused{number}", kind, file=path, force=True)


def test_what_utf8_cant_encode_is_refused_before_the_run(tmp_path):
    with pytest.raises(mpidl.UsageError, match=r"^model: a tensor is named 'a\\udc80', expected valid UTF-8"):
        train(Named("a\udc80"), tmp_path, steps=1)
    assert not list(tmp_path.iterdir())


def test_a_module_with_odd_names_resumes_and_is_exported(tmp_path):
    torch = pytest.importorskip("torch")
    from zoo import ZOO

    def run(steps, **options):
        module, loss = case.made()
        options = {"dir": tmp_path, "batch": 4, "steps": steps, "device": "cpu"} | options
        mpidl.train(module, case.data(), loss=loss, rule=mpidl.Adagrad(0.1), **options)
        return module.state_dict()

    case = ZOO["Dictionary"]
    expected = run(5, name="whole")
    run(2, name="run")
    found = run(5, name="run", resume=True)
    assert {"weights.O", "weights.O/H", "weights.O\0"} < set(found)
    export(tmp_path / "run", "torch", file=tmp_path / "model.pt")
    for state in (found, torch.load(tmp_path / "model.pt", weights_only=True)):
        assert set(state) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(state[name], tensor), name
