"""`model.initial`: a run begins with the trained values of a file, on whatever shards it has."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpidl
from cut_layouts import cut_layouts, in_layout
from mpidl.config import from_dict
from mpidl.job.build import build
from mpidl.job.initial import Initial
from mpidl.nn.model import CompleteModel
from mpidl.parameters import Box, Layout, Range, shards
from mpidl.storage.checkpoints import latest
from mpidl.storage.tensor_files import open_file, save
from tensor_files import KINDS

LAYOUT = Layout([("a/weight", (3, 5)), ("a/bias", (5,)), ("scale", ()), ("b/weight", (5, 7))])


class Own(CompleteModel):
    """A model with something of everything."""

    def __init__(self):
        self.layout, self.dtype, self.aliases = LAYOUT, np.dtype("float32"), {"tied": "b/weight"}
        self.parameters = np.zeros(LAYOUT.size, np.float32)
        self.kept = {"frozen": np.zeros(2), "other": np.ones(1)}, {"seen": np.array(0)}

    def constants(self):
        return self.kept[0]

    def buffers(self):
        return self.kept[1]

    def load_constants(self, constants):
        self.kept = dict(constants), self.kept[1]

    def load_buffers(self, buffers):
        self.kept = self.kept[0], dict(buffers)


VALUES = np.random.default_rng(3).normal(size=LAYOUT.size)
TENSORS = LAYOUT.views(VALUES)


@pytest.fixture(scope="module", params=KINDS)
def file(request, tmp_path_factory):
    suffix = {"safetensors": ".safetensors", "npz": ".npz", "torch": ".pt"}[request.param]
    path = tmp_path_factory.mktemp("initial") / f"model{suffix}"
    save(path, request.param, TENSORS, {})
    return path


@given(cuts=st.lists(st.integers(0, LAYOUT.size), min_size=2, max_size=2).map(sorted))
def test_any_range_is_read(file, cuts):
    start, stop = cuts
    found = Initial(file, Own()).read(Range(start, stop))
    np.testing.assert_array_equal(found, VALUES[start:stop].astype(np.float32))


@given(st.data())
def test_any_range_of_any_layout_is_read(file, data):
    layout = data.draw(cut_layouts(LAYOUT.shapes))
    initial, expected = Initial(file, Own()), in_layout(TENSORS, layout).astype(np.float32)
    for part in shards(layout.size, data.draw(st.integers(1, 4))):
        np.testing.assert_array_equal(initial.read(part, layout), expected[slice(*part)])


def test_a_range_reads_only_what_overlaps_it(tmp_path, monkeypatch):
    save(tmp_path / "model.npz", "npz", TENSORS, {})
    file, read = open_file(tmp_path / "model.npz"), []
    noting = file._replace(part=lambda name, box: read.append((name, box)) or file.part(name, box))
    monkeypatch.setattr("mpidl.job.initial.open_file", lambda path: noting)
    Initial(tmp_path / "model.npz", Own()).read(Range(16, 21))
    assert read == [("a/bias", Box((Range(1, 5),))), ("scale", Box(()))]


def test_what_lies_beside_parameters_is_taken_too(tmp_path):
    model = Own()
    save(tmp_path / "model.npz", "npz", TENSORS | {"frozen": np.array([4.0, 5.0]), "seen": np.array(7)}, {})
    Initial(tmp_path / "model.npz", model)
    np.testing.assert_array_equal(model.constants()["frozen"], [4, 5])
    np.testing.assert_array_equal(model.constants()["other"], [1])
    assert model.buffers()["seen"] == 7


def test_a_shared_tensor_may_have_any_of_its_names(tmp_path):
    names = {"b/weight": ["b/weight"], "tied": ["tied"], "both": ["b/weight", "tied"]}
    others = {name: array for name, array in TENSORS.items() if name != "b/weight"}
    for case, present in names.items():
        save(
            tmp_path / f"{case}.npz".replace("/", "-"), "npz", others | dict.fromkeys(present, TENSORS["b/weight"]), {}
        )
        initial = Initial(tmp_path / f"{case}.npz".replace("/", "-"), Own())
        np.testing.assert_array_equal(initial.read(Range(0, LAYOUT.size)), VALUES.astype(np.float32))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"scale": None}, "no tensor 'scale', which the model has"),
        (
            {"a/bias": None, "a.bias": np.ones(5), "z": np.ones(1)},
            "no tensor 'a/bias', which the model has; the nearest name is 'a.bias'",
        ),
        ({"a/bais": np.ones(5)}, "a tensor 'a/bais', which the model lacks; the nearest name is 'a/bias'"),
        ({"a/weight": np.ones((5, 3))}, "tensor 'a/weight' has the shape (5, 3), the model's (3, 5)"),
        ({"frozen": np.ones(3)}, "tensor 'frozen' has the shape (3,), the model's (2,)"),
        ({"scale": np.array(3)}, "tensor 'scale' is of int64, expected floats"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(tmp_path, change, line):
    path = tmp_path / "model.npz"
    save(path, "npz", {name: array for name, array in {**TENSORS, **change}.items() if array is not None}, {})
    with pytest.raises(mpidl.UsageError) as caught:
        Initial(path, Own()).read(Range(0, LAYOUT.size))
    assert str(caught.value) == f"model.initial: {path}: {line}"


def test_a_missing_file_is_one_line():
    with pytest.raises(mpidl.UsageError, match=r"^model\.initial: absent\.npz: no such file$"):
        Initial(Path("absent.npz"), Own())


def sections(directory, initial=None, **run):
    """Return the configuration of a short run."""
    return {
        "run": {"dir": str(directory), "steps": 2, **run},
        "data": {"source": "digits"},
        "model": {"layer": [{"type": "dense", "units": 10}]} | ({"initial": str(initial)} if initial else {}),
        "server": {"rule": "sgd", "rate": 0.25},
        "device": {"kind": "cpu"},
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the directory of a run."""
    return Path(mpidl.train(config=sections(tmp_path_factory.mktemp("trained"), name="first", seed=9))["run_dir"])


def test_servers_begin_with_their_parts_of_a_run(trained):
    job = build(from_dict(sections(trained.parent, trained)))
    network = mpidl.load(trained)
    for servers in (1, 2, 3):
        layout = job.original.layout
        parts = [job.first_values(part, layout) for part in shards(layout.size, servers)]
        np.testing.assert_array_equal(np.concatenate(parts), network.parameters)
    assert not np.array_equal(job.original.initial(Range(0, job.original.layout.size)), network.parameters)


@pytest.mark.parametrize("own", [False, True])
def test_a_run_begins_with_it_and_resumes_without(trained, tmp_path, own):
    mpidl.train(config=sections(tmp_path, trained), name="config", dir=tmp_path, seed=0)
    first = mpidl.load(trained)
    model = mpidl.Network(first.layers, first.input_shape, seed=5) if own else None
    arguments = {"config": sections(tmp_path, name="second"), "initial": trained / "checkpoints" / "2"}
    summary = mpidl.train(model, **arguments)
    run = Path(summary["run_dir"])
    before, after = (latest(run).path.parent / step for step in ("0", "2"))
    np.testing.assert_array_equal(Initial(before, first).read(Range(0, first.layout.size)), first.parameters)
    trained_on = Initial(after, first).read(Range(0, first.layout.size))
    assert not np.array_equal(trained_on, first.parameters)
    # The file may be gone.
    arguments["initial"] = "absent"
    again = mpidl.train(model, **arguments, steps=3, resume=True)
    assert again["pushes"] >= 1
    np.testing.assert_array_equal(Initial(after, first).read(Range(0, first.layout.size)), trained_on)
    assert mpidl.evaluate(run, model)["step"] == 3


def test_a_virtual_cluster_begins_with_it(trained, tmp_path):
    from mpidl.runs.simulate import simulate

    table = sections(tmp_path, trained, name="virtual") | {"virtual": {"compute": 1.0}}
    summary = simulate(from_dict(table), 3)
    np.testing.assert_array_equal(
        Initial(Path(summary["run_dir"]) / "checkpoints" / "0", mpidl.load(trained)).read(Range(0, 650)),
        mpidl.load(trained).parameters,
    )
