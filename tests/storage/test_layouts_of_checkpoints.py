"""Checkpoints whose shards have the tensors in pieces, in any order: read in any other layout, bit for bit."""

import os
import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import POSITION, save

from cut_layouts import cut_layouts, in_layout, shapes_by_name, tensors_of
from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Box, Layout, Range, shards
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import replica_file, scratch, shard_file
from mpidl.storage.writer import CheckpointIndex, save_index, save_shard, write_file

STATES = ("parameters", "rule/sum", "policy/sum")


@pytest.fixture(autouse=True)
def unsynchronised(monkeypatch):
    """Don't wait for the disk: no power fails here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def written(directory, layout, servers, partitions, kept=("start", "residual")):
    """Save a checkpoint in a layout, of a replica of `ranks` ranks; return the tensors of its vectors by name."""
    unfinished = scratch(directory, POSITION.step)
    tensors = {name: tensors_of(layout.shapes, start=1000 * number + 1) for number, name in enumerate((*STATES, *kept))}
    vectors = {name: in_layout(each, layout) for name, each in tensors.items()}
    for number, part in enumerate(shards(layout.size, servers)):
        held = {name: vectors[name][slice(*part)] for name in STATES}
        counters = {"clock": np.array(100 + number), "policy/gathered": np.array([number])}
        save_shard(unfinished, number, part, held | counters)
    names = []
    for number, part in enumerate(shards(layout.size, partitions)):
        names.append(replica_file(3, number))
        attributes = {"start": part.start, "stop": part.stop} if partitions > 1 else {}
        write_file(unfinished / names[-1], attributes, {name: vectors[name][slice(*part)] for name in kept})
    save_index(unfinished, CheckpointIndex(layout, servers, POSITION, "[run]\n", "0.0.1", {}, names))
    return tensors


@settings(max_examples=15)
@given(data=st.data(), shapes=shapes_by_name)
def test_any_layout_on_any_shards_reads_what_any_other_wrote(tmp_path_factory, data, shapes):
    old, new = (data.draw(cut_layouts(shapes)) for _ in range(2))
    before, after, partitions = (data.draw(st.integers(1, min(old.size, 5))) for _ in range(3))
    directory = tmp_path_factory.mktemp("run")
    tensors = written(directory, old, before, partitions)
    saved = Checkpoint(directory / "42")
    for layout in (new, old, old.uncut):
        expected = {name: in_layout(each, layout) for name, each in tensors.items()}
        for part in shards(layout.size, after):
            state, kept = saved.shard_state(part, layout), saved.replica_vectors(3, part, layout)
            assert sorted(kept) == ["residual", "start"]
            read_alone = {name: saved.read(name, part, layout) for name in STATES}
            for name, found in [*state.items(), *kept.items(), *read_alone.items()]:
                if name in expected:
                    assert found.tobytes() == expected[name][slice(*part)].tobytes()
            # The counters are those of the shard that had the first element.
            place = np.flatnonzero(in_layout(tensors["parameters"], old) == state["parameters"][0])[0]
            number = int(state["policy/gathered"][0])
            assert place in range(*shards(old.size, before)[number])
            assert state["clock"] == 100 + number <= saved.clock(part, layout) <= 99 + before
    with h5py.File(directory / "42" / "index.h5") as index:
        for vector in ("parameters", "rule/sum"):
            for name, tensor in tensors[vector].items():
                assert index[f"{vector}/{name}"][...].tobytes() == tensor.tobytes()


SHAPES = {"0-dense/weight": (1024, 1024), "0-dense/bias": (1024,)}


def halves(axis):
    """Return a layout of two ranks, each with half of the units, or of the inputs."""
    pieces = []
    for half in (Range(0, 512), Range(512, 1024)):
        ranges = (half, Range(0, 1024)) if axis == 0 else (Range(0, 1024), half)
        pieces += [("0-dense/weight", Box(ranges)), ("0-dense/bias", Box((half,)))]
    return Layout(SHAPES.items(), pieces)


@pytest.mark.parametrize(("old", "new"), [(0, 1), (1, 0), (0, None), (1, None), (None, 0), (None, 1)])
def test_what_is_read_is_all_that_takes_memory(tmp_path, old, new):
    layouts = {0: halves(0), 1: halves(1), None: Layout(SHAPES.items())}
    tensors = written(tmp_path, layouts[old], 3, 1, kept=())
    saved, layout = Checkpoint(tmp_path / "42"), layouts[new]
    part = Range(layout.size // 2, layout.size)
    tracemalloc.start()
    try:
        found = saved.read("rule/sum", part, layout)
        assert tracemalloc.get_traced_memory()[1] < found.nbytes + (1 << 20)
    finally:
        tracemalloc.stop()
    assert found.tobytes() == in_layout(tensors["rule/sum"], layout)[slice(*part)].tobytes()


def test_the_index_tells_the_layout_in_plain_text(tmp_path):
    left, right = Box((Range(0, 2), Range(0, 2))), Box((Range(0, 2), Range(2, 3)))
    layout = Layout(
        [("a/weight", (2, 3)), ("scale", ())], [("a/weight", right), ("scale", Box(())), ("a/weight", left)]
    )
    save(tmp_path, layout, servers=2)
    with h5py.File(tmp_path / "42" / "index.h5") as file:
        assert file["layout"][()] == b'[["a/weight",[[0,2],[2,3]]],["scale",[]],["a/weight",[[0,2],[0,2]]]]'
    assert Checkpoint(tmp_path / "42").layout == layout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[["a/weight",[[0,2]]]]', "parameter tensor 'a/weight' of shape (3,): the pieces don't have each elem"),
        ('[["a/weight",[[0,3]]],["b",[[0,3]]]]', "a piece of an unknown tensor 'b'"),
        ("[", "Input data was truncated"),
        ('[["a/weight","x"]]', "Expected `array`, got `str` - at `$[0][1]`"),
    ],
)
def test_a_layout_of_something_else_is_one_line(tmp_path, text, reason):
    save(tmp_path, Layout([("a/weight", (3,))]), servers=1)
    with h5py.File(tmp_path / "42" / "index.h5", "r+") as file:
        del file["layout"]
        file["layout"] = text
    with pytest.raises(UsageError) as error:
        Checkpoint(tmp_path / "42")
    assert str(error.value).startswith(f"{tmp_path / '42'}: not a readable checkpoint: {reason}")


def test_a_part_that_no_shard_has_is_one_line(tmp_path):
    layout = Layout([("a/weight", (3, 4))])
    save(tmp_path, layout, servers=3)
    with h5py.File(tmp_path / "42" / shard_file(1), "r+") as file:
        file.attrs["start"] = 5
        del file["parameters"], file["rule/sum"]
        file["parameters"] = file["rule/sum"] = np.zeros(3, np.float32)
    cut = Layout(
        layout.shapes.items(),
        [("a/weight", Box((Range(0, 3), Range(0, 2)))), ("a/weight", Box((Range(0, 3), Range(2, 4))))],
    )
    with pytest.raises(MpidlError, match=r"42: has 5 of the parameters 0 to 6, expected each of the 6 once$"):
        Checkpoint(tmp_path / "42").read("parameters", Range(0, 6), cut)
