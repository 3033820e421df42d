"""Mirrors of real ranks, those of two nodes: a run that is begun again goes on from the newest one."""

import json
import shutil
import time

import numpy as np
import pytest

import mpidl
from mpidl.data import Arrays
from mpidl.launch import shared_memory
from mpidl.mirrors.feature import Mirrors
from mpidl.rules import Sgd
from mpidl.storage.checkpoints import steps

pytestmark = pytest.mark.mpi(min_size=3)
SAMPLES, EPOCHS = 61, 3


class Counting:
    """A model whose parameter i counts how often sample i was applied, if plain SGD has a rate of 1."""

    def __init__(self):
        self.parameters = np.zeros(SAMPLES)

    def loss_and_gradient(self, batch):
        time.sleep(0.02)
        return 0.0, -np.bincount(batch.inputs[:, 0].astype(int), minlength=SAMPLES).astype(float)


def events(run, **details):
    found = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [each for each in found if each["event"] == "checkpoint" and details.items() <= each.items()]


def test_a_run_that_begins_again_goes_on_from_its_newest_mirror(comm, shared_path, monkeypatch):
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    run, memory = shared_path / "run", shared_path / f"node{comm.rank // 2}"
    memory.mkdir(exist_ok=True)
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", memory)
    numbers = np.arange(SAMPLES, dtype=np.float32)[:, None]
    data, keys = (
        Arrays((numbers, numbers), (numbers, numbers)).open(),
        {"epochs": EPOCHS, "batch": 4, "portion": 8, "mirror": 0.05},
    )

    def train(**more):
        model = Counting()
        mpidl.train(model, data, rule=Sgd(1.0), dir=run.parent, device="cpu", **keys, **more)
        comm.barrier()
        return model.parameters.tolist()

    with monkeypatch.context() as patched:
        # As if the job had died: nothing is tidied up, and the last checkpoints haven't been made.
        patched.setattr(Mirrors, "discard", lambda mirrors: None)
        assert train() == [EPOCHS] * SAMPLES
    last = events(run, mirror=True)[-1]["step"]
    comm.barrier()
    if comm.rank == 0:
        for step in steps(run / "checkpoints")[1:]:
            shutil.rmtree(run / "checkpoints" / str(step))
        (run / "summary.json").unlink()
    comm.barrier()
    assert train(resume=True) == [EPOCHS] * SAMPLES
    assert [each["step"] for each in events(run, recovered=True)] == [last]
    assert last > 0
    assert not list(memory.iterdir())
