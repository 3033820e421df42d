"""Mirrors of a run in one process."""

import json
import shutil
import time

import numpy as np

import mpidl
from mpidl.data import Arrays
from mpidl.launch import shared_memory
from mpidl.mirrors.feature import Mirrors
from mpidl.rules import Sgd

SAMPLES, EPOCHS = 61, 3


class Counting:
    """A model whose parameter i counts how often sample i was applied, if plain SGD has a rate of 1."""

    def __init__(self):
        self.parameters = np.zeros(SAMPLES)

    def loss_and_gradient(self, batch):
        time.sleep(0.01)
        return 0.0, -np.bincount(batch.inputs[:, 0].astype(int), minlength=SAMPLES).astype(float)


def test_it_goes_on_from_its_mirror(tmp_path, monkeypatch, capfd):
    memory, run = tmp_path / "memory", tmp_path / "run"
    memory.mkdir()
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", memory)
    numbers = np.arange(SAMPLES, dtype=np.float32)[:, None]
    data = Arrays((numbers, numbers), (numbers, numbers)).open()

    def train(**more):
        model, keys = Counting(), {"epochs": EPOCHS, "batch": 4, "portion": 8, "mirror": 0.05, **more}
        mpidl.train(model, data, rule=Sgd(1.0), dir=tmp_path, device="cpu", **keys)
        return model.parameters.tolist()

    with monkeypatch.context() as patched:
        # As if it had been killed: nothing is tidied up, and the last checkpoint hasn't been made.
        patched.setattr(Mirrors, "discard", lambda mirrors: None)
        assert train() == [EPOCHS] * SAMPLES
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    made = [each["step"] for each in events if each["event"] == "checkpoint" and each.get("mirror")]
    assert len(made) > 1
    for step in (run / "checkpoints").iterdir():
        if step.name != "0":
            shutil.rmtree(step)
    (run / "summary.json").unlink()
    assert train(resume=True) == [EPOCHS] * SAMPLES
    assert f"{run}: going on from the mirror of step {made[-1]} in the nodes' memory" in capfd.readouterr().err
    assert not list(memory.iterdir())
    # Of no use where a checkpoint is made as often.
    train(checkpoint_every=0.05)
    assert "topology.mirror: 0.05 s, but there is a checkpoint every 0.05 s" in capfd.readouterr().err
