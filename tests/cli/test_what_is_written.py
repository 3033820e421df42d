"""Each operation of each command that changes a file: what the command is to write, and nothing else."""

import os
import re

import numpy as np
import pytest
from PIL import Image

from file_operations import listed
from mpidl.cli import main
from mpidl.launch import shared_memory
from tensor_files import POSSIBLE

JOB = """
[run]
name = "run"
epochs = 1
patience = 5
trace = true
loggers = ["tensorboard"]
[data]
source = "digits"
validation = 0.2
[[model.layer]]
type = "dense"
units = 10
[topology]
mirror = 0.01
[device]
kind = "cpu"
[virtual]
compute = 0.001
"""
SCRIPT = """
import mpidl

mpidl.train(config="job.toml", name="script")
"""
RUN, FILES = "runs/run(/.*)?", "|memory/mpidl.mirrors.*"
#: What each command may make, change and remove; a file is first written beside itself.
COMMANDS = {
    "train job.toml": "runs|" + RUN + FILES,
    "train --resume runs/run --set run.epochs=2": RUN + FILES,
    "run script.py": "runs|runs/script(/.*)?" + FILES,
    "simulate job.toml --replicas 2 --set topology.mirror=10": "runs|runs/virtual(/.*)?",
    "evaluate runs/run": "",
    "predict runs/run test -o out.h5": "out.h5",
    "export runs/run --to npz --force": "runs/run/model.npz",
    "export runs/run --to safetensors -o model.st": "model.st",
    "export runs/run --to torch -o model.pt": "model.pt",
    "export runs/run --to onnx -o model.onnx": "model.onnx",
    "report runs/run --force": "runs/run/report.html",
    "report runs/run --to tensorboard -o board": "board(/.*)?",
    "report runs/run --trace trace.json.gz": "trace.json.gz",
    "top runs/run": "",
    "plan job.toml --ranks 4 --apply": "job.toml",
    "submit job.toml --nodes 1 --ranks-per-node 4 --time 1:00:00 --scheduler slurm --print": "",
    "data pack images pack.h5 --size 8": "pack.h5",
}
if "torch" not in POSSIBLE:
    del COMMANDS["export runs/run --to torch -o model.pt"]
#: Commands by which a received run goes on.
OF_RUNS = [each for each in COMMANDS if "runs/run" in each]


@pytest.fixture
def carry_out(tmp_path, monkeypatch, capfd):
    """Return a function that carries out a command, checks what it does to files, and returns what it does to them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    (tmp_path / "memory").mkdir()
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "script.py").write_text(SCRIPT)
    for label in ("images/a", "images/b"):
        (tmp_path / label).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / label / f"{number}.png")

    def there():
        return {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*") if not path.is_dir()}

    def act(command, code=(0,)):
        expected = re.compile(rf"({COMMANDS[command]})(-[0-9a-f]{{16}}\.partial)?")
        before = there()
        with listed(monkeypatch) as found:
            assert main(command.split()) in code, capfd.readouterr().err
        after = there()
        # Libraries that are no Python code show in what is there only.
        found += [("", str(path)) for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        own = {os.path.relpath(path, tmp_path) for _, path in found if "__pycache__" not in path}
        assert [path for path in sorted(own) if not expected.fullmatch(path)] == []
        return own

    return act


def test_each_command_changes_what_it_is_to_write(carry_out):
    for command, written in COMMANDS.items():
        assert bool(carry_out(command)) == bool(written)


def test_a_run_that_others_have_prepared_changes_nothing_outside_of_itself(carry_out, tmp_path):
    carry_out("train job.toml")
    run, outside = tmp_path / "runs" / "run", tmp_path / "outside"
    (run / "trace").rename(outside)
    (run / "tensorboard").rename(outside / "board")
    (outside / "secret").write_text("secret")
    for name in ("trace", "tensorboard", "checkpoints/.2", "checkpoints/.4-ab.interim"):
        (run / name).symlink_to(outside)
    for name in ("report.html", "model.npz", "best.json-partial", "metrics.jsonl.partial"):
        (run / name).symlink_to(outside / "secret")
    for command in OF_RUNS:
        carry_out(command, code=(0, 2))
    assert (outside / "0.h5").exists()
