"""A job whose vectors have the tensors in pieces: what it does with a tensor has the bits of a job of whole tensors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpidl
from cut_layouts import cut_layouts, in_layout
from mpidl.config import from_dict
from mpidl.job.build import build
from mpidl.job.checkpoints import Checkpoints, restore
from mpidl.job.fill import fill
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.job.ready import ReadyJob, local_model
from mpidl.metrics.figures import Figures
from mpidl.parameters import Range, shards
from mpidl.runs.start import run
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import latest
from mpidl.storage.writer import save_shard

LAYERS = [
    {"type": "dense", "units": 7, "activation": "tanh"},
    {"type": "batch_normalisation"},
    {"type": "dense", "units": 10},
]
GROUPS = [
    {"match": "0-dense.bias", "frozen": True},
    {"match": "*.bias", "rate": 0.5},
    {"match": "2-*", "weight_decay": 0.1},
]


def configured(directory, **more):
    return from_dict(
        {
            "run": {"dir": str(directory), "name": "run", "steps": 9, "deterministic": True},
            "data": {"source": "digits"},
            "model": {"layer": LAYERS, "group": GROUPS},
            "algorithm": {"name": "downpour", "n_push": 2, "wire": "bf16"},
            "server": {"rule": "adam", "rate": 0.01},
            "device": {"kind": "cpu"},
            **more,
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the configuration of a run of whole tensors, its checkpoint, and the job that resumes from it."""
    config = configured(tmp_path_factory.mktemp("trained"))
    run(config)
    saved = latest(config.run.directory)
    return config, saved, place(build(config, saved), 1)


def filled(job, servers):
    """Return the shards of a job on a number of servers."""
    parts = shards(job.layout.size, servers)
    return [fill(job, part, np.empty(part.size, job.job.dtype), 50) for part in parts]


def laid_out(job, layout):
    """Return a job whose vectors have a layout."""
    return replace(place(job, 1), layout=layout)


def vectors_of(shards):
    """Return the whole vectors of shards by name."""
    return {name: np.concatenate([shard.vectors[name] for shard in shards]) for name in shards[0].vectors}


@given(data=st.data(), resumed=st.booleans(), n_push=st.integers(2, 3))
def test_shards_begin_and_go_on_with_the_same_bits(trained, data, resumed, n_push):
    _, saved, plain = trained
    layout = data.draw(cut_layouts(plain.layout.shapes))
    # With another n_push, not all that shards kept is of use, but the rule's state is.
    config = configured("runs", algorithm={"name": "downpour", "n_push": n_push, "wire": "bf16"})
    plain = place(build(config, saved if resumed else None), 1)
    job = laid_out(plain.job, layout)
    assert job.layout == layout
    apart, whole = filled(job, data.draw(st.integers(1, 4))), filled(plain, 1)
    random = np.random.default_rng(0)
    for step in range(3):
        for name, vector in vectors_of(whole).items():
            expected = in_layout(plain.layout.views(vector), layout)
            assert vectors_of(apart)[name].tobytes() == expected.tobytes(), (step, name)
        assert all(shard.clock == whole[0].clock for shard in apart)
        gradient = random.normal(size=layout.size).astype(np.float32)
        whole[0].receive_push(0, whole[0].clock, gradient, (step, step))
        cut = in_layout(plain.layout.views(gradient), layout)
        for shard in apart:
            shard.receive_push(0, shard.clock, cut[slice(*shard.range)], (step, step))


@settings(max_examples=10)
@given(data=st.data())
def test_what_it_saves_is_read_as_whole_tensors(trained, tmp_path_factory, data):
    config, saved, plain = trained
    layout = data.draw(cut_layouts(plain.layout.shapes))
    job = laid_out(plain.job, layout)
    ready = ReadyJob(job, local_model(job), Figures(), tmp_path_factory.mktemp("again"))
    ready.checkpoints.mkdir()
    for number, shard in enumerate(filled(job, 3)):
        save_shard(ready.scratch(1), number, shard.range, shard.state())
    Checkpoints(ready).complete(1, saved.position, 3)
    again = Checkpoint(ready.checkpoints / str(saved.position.step))
    assert again.layout == layout
    whole = Range(0, layout.size)
    for name in ("parameters", *(f"rule/{state}" for state in plain.job.states)):
        assert again.read(name, whole, plain.layout).tobytes() == saved.read(name, whole).tobytes()
    network = mpidl.Network([mpidl.Dense(7, "tanh"), mpidl.nn.BatchNormalisation(), mpidl.Dense(10)], (8, 8))
    restore(Job.of(config, plain.job.given, network), again)
    assert network.parameters.tobytes() == saved.read("parameters", whole).tobytes()


@settings(max_examples=5)
@given(data=st.data())
def test_a_run_begins_with_the_trained_values_of_another(trained, data):
    _, saved, plain = trained
    config = configured("runs", model={"layer": LAYERS, "initial": str(saved.path)})
    layout = data.draw(cut_layouts(plain.layout.shapes))
    job = build(config)
    tensors = plain.layout.views(saved.read("parameters", Range(0, layout.size)))
    found = [job.first_values(part, layout) for part in shards(layout.size, 3)]
    assert np.concatenate(found).tobytes() == in_layout(tensors, layout).tobytes()
