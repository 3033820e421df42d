"""What a user did wrong: one line and exit code 2, quickly."""

import gzip
import os
import re
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
import tomli_w

from mpidl.cli import main
from other_user import TWO_USERS, as_another

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"


#: Words of commands, each with the line that they get, or with its beginning.
WRONG = r"""
train DIGITS --set run.epoch=3 | run.epoch: unknown key, did you mean 'epochs'?
train DIGITS --set data.batch=abc | data.batch: expected int >= 1, found 'abc'
train DIGITS --set epochs | --set epochs: expected section.key=value
train absent.toml | absent.toml: No such file or directory
train digits | digits: no such file; `mpidl init digits` writes a job of that name
train . | .: Is a directory
train | train: expected CONFIG or --resume RUN_DIR (see `mpidl train --help`)
train --resume absent | absent: no directory, expected the directory of a run, such as runs/digits
train DIGITS -n 0 | -n: expected int >= 1, found 0
train DIGITS -n x | argument -n: invalid int value: 'x' (see `mpidl train --help`)
data pack none x.h5 --size 0 | --size: expected int >= 1, found 0
data pack none x.h5 --seed -1 | --seed: expected int >= 0, found -1
data pack none x.h5 --test-fraction 1 | --test-fraction: expected float > 0 and < 1, found 1.0
data pack none x.h5 | none: no such folder, expected one with a subfolder of images for each class
train DIGITS -n 2 |
    2 ranks are too few: a coordinator, 1 server and 1 worker need 3 (or run without mpirun for one process)
train DIGITS -n 4 --set topology.servers=3 |
    4 ranks are too few: a coordinator, 3 servers and 1 worker need 5 (or run without mpirun for one process)
plan | the following arguments are required: CONFIG (see `mpidl plan --help`)
plan DIGITS --ranks 2 |
    2 ranks are too few: a coordinator, 1 server and 1 worker need 3 (or run without mpirun for one process)
plan DIGITS --ranks 4 --set algorithm.name=diloco --set algorithm.quorum=3 |
    algorithm.quorum: 3, expected at most 2, the number of replicas
plan DIGITS --set data.batch=0 | data.batch: expected int >= 1, found 0
plan DIGITS --apply | --apply: expected --ranks too
plan DIGITS --apply --ranks 4 --set topology.servers=1 | --apply: topology.servers is given, leave it out
plan DIGITS --nodes 1,two | --nodes: expected numbers such as 1,2,4 or 1-4, found '1,two'
plan DIGITS --nodes 8-1 | --nodes: expected numbers such as 1,2,4 or 1-4, found '8-1'
plan DIGITS --nodes 1-999999999 | --nodes: expected numbers such as 1,2,4 or 1-4, found '1-999999999'
plan DIGITS --nodes 0 | --nodes: expected int >= 1, found 0
plan DIGITS --nodes 1 --ranks-per-node -2 | --ranks-per-node: expected int >= 1, found -2
plan DIGITS --ranks-per-node 2 | --ranks-per-node: expected --nodes too
plan DIGITS --nodes 1 --ranks 2 | --ranks: can't be combined with --nodes
plan DIGITS --nodes 1 --apply | --apply: can't be combined with --nodes
plan DIGITS --nodes 1 --set topology.partitions=2 |
    --nodes: finds the fastest topology.partitions for each, leave it out
simulate DIGITS | the following arguments are required: --replicas (see `mpidl simulate --help`)
simulate DIGITS --replicas 0 | --replicas: expected int >= 1, found 0
simulate DIGITS --replicas 2 | virtual.compute: missing, expected the seconds of a gradient, or virtual.calibration...
simulate DIGITS --replicas 2 --set virtual.calibration=nowhere |
    virtual.calibration: nowhere has no measurements of a run on ranks:...
simulate DIGITS --replicas 2 --set virtual.compute=gamma:1 | virtual.compute: 'gamma:1', expected SECONDS...
simulate DIGITS --replicas 2 --set algorithm.name=sandblaster --set server.rule=default --set algorithm.warm_start=2 |
    algorithm.warm_start: 2, expected 0:...
simulate DIGITS --replicas 2 --set virtual.compute=1 --set 'virtual.slow=[{replica = 2}]' |
    virtual.slow: replica 2, there are 2 (0 to 1)
simulate DIGITS --replicas 2 --set virtual.cores=2 --set virtual.ranks_per_node=2 |
    virtual.ranks_per_node: 2, can't be combined with cores, which is for one node
run | run: expected SCRIPT or --resume RUN_DIR (see `mpidl run --help`)
run absent.py | absent.py: No such file or directory
run . | .: Is a directory
run job.toml -n 2 | job.toml: a configuration; `mpidl train job.toml` trains it
run syntax.py -n 2 | syntax.py, line 2: not Python ('(' was never closed)
run binary.py | binary.py: not Python (source code...
run latin.py | latin.py, line 1: not Python ((unicode error) 'utf-8' codec can't decode...
run --resume runs/y | runs/y/script.json: can't be read (Input data was truncated)
run --resume . | .: not a run that `mpidl run` or `mpidl submit` has trained by a script
run syntax.py -n 0 | -n: expected int >= 1, found 0
train x.py -n 4 | x.py: a Python script, expected a configuration; `mpidl run x.py` runs a script
plan x.py | x.py: a Python script, expected a configuration; only configurations can be planned...
simulate x.py --replicas 2 | x.py: a Python script, expected a configuration; only configurations can be...
train runs/x | runs/x: the directory of a run, expected a configuration, or --resume runs/x
train --resume runs/x | runs/x: trained by a script; `mpidl run --resume runs/x` continues it
train --resume runs/x -n 3 | runs/x: trained by a script; `mpidl run --resume runs/x -n 3` continues it
plan runs/data |
    runs/data/config.toml: the model or the data are objects of a Python script; only configurations can be planned...
plan runs/model --nodes 2 |
    runs/model/config.toml: the model or the data are objects of a Python script; only configurations can be planned...
plan runs/data/config.toml --ranks 4 |
    runs/data/config.toml: the model or the data are objects of a Python script; only configurations can be planned...
simulate runs/model --replicas 2 |
    runs/model/config.toml: the model or the data are objects of a Python script; only configurations can be planned...
train --resume runs/data |
    runs/data/config.toml: the model or the data are objects of a Python script; the script itself continues it...
"""


@pytest.fixture
def there(tmp_path):
    """What the commands find in the working directory."""
    (tmp_path / "job.toml").write_text("[run]\n")
    (tmp_path / "syntax.py").write_text("x = '\\d'\nprint((1)\n")
    (tmp_path / "binary.py").write_bytes(b"x = 1\0")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    for name, config in (
        ("x", ""),
        ("data", '[data]\nsource = "python"\n[model]\nfactory = "m:f"\n'),
        ("model", '[data]\nsource = "digits"\n[model]\nfactory = "python:object"\n'),
    ):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_text(config)
    (tmp_path / "runs" / "x" / "script.json").write_text("{}")
    (tmp_path / "runs" / "y").mkdir()
    (tmp_path / "runs" / "y" / "script.json").write_text("{")


@pytest.mark.parametrize("case", WRONG.strip().replace("\n    ", " ").splitlines())
def test_what_a_user_did_wrong_is_one_line(mpidl_here, there, case):
    words, line = case.split(" | ")
    ended = mpidl_here(*(str(DIGITS) if word == "DIGITS" else word for word in shlex.split(words)))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    told = ended.stderr.removeprefix("mpidl: ").removesuffix("\n")
    assert told.startswith(line[:-3]) if line.endswith("...") else told == line


@pytest.mark.parametrize("arguments", [[], ["trian"], ["train", DIGITS, "--jsn"], ["evaluate"], ["data"]])
def test_arguments_that_are_not_known(mpidl_here, arguments):
    ended = mpidl_here(*arguments)
    assert ended.stderr.startswith("mpidl: ")
    assert ended.stderr.count("\n") == 1
    assert ended.returncode == 2


def test_only_the_first_rank_says_what_all_found(mpidl_here):
    ranks = [
        mpidl_here("train", "absent.toml", OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2")
        for rank in range(2)
    ]
    assert [rank.stderr.count("\n") for rank in ranks] == [1, 0]
    assert [rank.returncode for rank in ranks] == [2, 2]


@pytest.mark.parametrize(
    "words", [["train", "-n", "3"], ["submit", "--nodes", "2", "--ranks-per-node", "2", "--time", "1:00:00", "--print"]]
)
def test_a_pipe_that_only_one_rank_could_read(mpidl_here, tmp_path, words):
    os.mkfifo(tmp_path / "pipe")
    command, *others = words
    ended = mpidl_here(command, tmp_path / "pipe", *others)
    assert ended.stderr == f"mpidl: {tmp_path}/pipe: a pipe or a device, expected a file, which every rank can read\n"
    assert ended.returncode == 2


@pytest.fixture
def closed():
    """A directory of this user's in one that others can enter; those of pytest aren't."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        found = Path(place, "closed")
        found.mkdir(mode=0o700)
        yield found


@TWO_USERS
def test_directories_that_only_others_can_enter(closed):
    commands = [
        ["train", "--resume", closed], ["train", closed], ["train", "--resume", closed / "run"],
        ["train", closed / "job.toml"], ["train", closed / "job.toml", "-n", "3"], ["run", closed],
        ["run", "--resume", closed], ["run", closed / "x.py"], ["evaluate", closed], ["export", closed, "--to", "npz"],
        ["plan", closed / "job.toml", "--ranks", "4"], ["data", "pack", closed / "images", closed / "x.h5"],
    ]  # fmt: skip
    script = """
import sys
import mpidl.cli.commands, mpidl.config, mpidl.data.pack, mpidl.runs.agreement, mpidl.runs.evaluate
import mpidl.runs.load, mpidl.runs.plan
from mpidl.cli import main
become()
os.dup2(1, 2)
for words in eval(sys.argv[1]):
    print(main(words), flush=True)
"""
    lines = as_another(script, [[str(word) for word in words] for words in commands]).splitlines()
    assert len(lines) == 2 * len(commands)
    for line, code in zip(lines[::2], lines[1::2], strict=True):
        assert line.startswith(f"mpidl: {closed}")
        assert "ermission denied" in line
        assert "MPIDL_DEBUG" not in line
        assert code in ("1", "2")


def test_junk_of_a_launcher_is_one_line(mpidl_here):
    ended = mpidl_here("train", DIGITS, OMPI_COMM_WORLD_RANK="junk", OMPI_COMM_WORLD_SIZE="2")
    expected = "expected a number from 0 to 1 as a launcher sets it, or unset it"
    assert ended.stderr == f"mpidl: OMPI_COMM_WORLD_RANK=junk in the environment: {expected}\n"
    assert ended.returncode == 2


def test_names_are_told_without_control_characters_and_shortened(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["train", str(DIGITS), "--set", "run.name=\x1b[31m\x07"],
        ["train", str(DIGITS), "--set", f"run.{'x' * 9999}=3"],
        ["train", str(DIGITS), "--set", f"{'x' * 9999}.y=3"],
        ["train", str(DIGITS), "--set", f"server.rule={'x' * 9999}"],
        ["train", "\x1b[31m.toml"],
        ["train", f"{'x' * 9999}.toml"],
        ["x" * 9999],
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("mpidl: ")
        assert line.isprintable()
        assert len(line) < 500
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train", "--set", "model.layer_=1"], "model.layer_: unknown key, did you mean 'layer'?"),
        (
            ["train", "--set", "algorithm.history=1000000000"],
            "algorithm.history: expected int >= 1 and <= 1000, found 10",
        ),
        (["train", "--set", "topology.servers=1000000"], "topology.servers: 1000000, expected at most one for each"),
        (["train", "--set", "run.epochs=9223372036854775807"], "run.epochs: 9223372036854775807, expected fewer"),
        (["train", "-n", "999999"], "-n 999999: 999999 ranks need 5e+04 GB of memory, this machine has "),
        (["train", "-n", "9999999999"], "-n: expected int <= 1000000, found 9999999999"),
        (["plan", "--ranks", "1000000000"], "--ranks: expected int <= 1000000, found 1000000000"),
        (["simulate", "--replicas", "1000000", "--set", "virtual.compute=1"], "17,226 parameters take "),
    ],
)
def test_sizes_beyond_memory_are_one_line(capsys, tmp_path, monkeypatch, arguments, line):
    monkeypatch.chdir(tmp_path)
    for variable in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    name = "sandblaster" if "history" in " ".join(arguments) else "sync" if "replicas" in arguments[1] else "downpour"
    assert main([arguments[0], str(DIGITS), *arguments[1:], "--set", f"algorithm.name={name}"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"mpidl: {line}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "layer", [{"type": "dense", "units": 10**12}, {"type": "embedding", "vocabulary": 10**14, "units": 100}]
)
def test_a_model_beyond_memory_is_one_line_and_can_be_planned(capsys, tmp_path, monkeypatch, layer):
    monkeypatch.chdir(tmp_path)
    layers = [layer, {"type": "dense", "units": 10}]
    Path("job.toml").write_text(tomli_w.dumps({"data": {"source": "digits"}, "model": {"layer": layers}}))
    assert main(["train", "job.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"mpidl: [\d,]+ parameters take \S+ GB, this machine has \S+ GB of memory", line)
    assert main(["plan", "job.toml"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_an_inverse_hessian_beyond_memory_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = [{"type": "dense", "units": 10**5}, {"type": "dense", "units": 10}]
    algorithm = {"name": "sandblaster", "method": "ssbroyden"}
    job = {"data": {"source": "digits"}, "model": {"layer": layers}, "algorithm": algorithm}
    Path("job.toml").write_text(tomli_w.dumps(job))
    assert main(["train", "job.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    size = 100_000 * (64 + 1 + 10) + 10
    assert line.startswith(
        f"mpidl: {size:,} parameters with a matrix of {size:,} x {size:,} elements take 4.5e+05 GB, "
    )
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_a_refused_run_leaves_no_directory_behind(capsys, tmp_path, monkeypatch):
    """Refused for images that can't be read, or at its first batch."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("data.h5", "w") as file:
        for part in ("train", "test"):
            file[f"{part}/x"], file[f"{part}/y"] = np.full((9, 2), 77), np.arange(9) % 3
    embedding = [{"type": "embedding", "vocabulary": 5, "units": 2}, {"type": "dense", "units": 3}]
    Path("job.toml").write_text(
        tomli_w.dumps({"data": {"source": "hdf5", "path": "data.h5"}, "model": {"layer": embedding}})
    )
    assert main(["train", "job.toml"]) == 2
    assert capsys.readouterr().err.endswith("mpidl: an id of 77, the embedding has a vocabulary of 5\n")
    for part in ("train", "t10k"):
        Path(f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1]))
        with gzip.open(f"{part}-images-idx3-ubyte.gz", "wb") as images:
            images.write(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 3, 4]))
        damaged = bytearray(Path(f"{part}-images-idx3-ubyte.gz").read_bytes())
        damaged[-8] ^= 1  # the checksum
        Path(f"{part}-images-idx3-ubyte.gz").write_bytes(damaged)
    assert main(["train", str(DIGITS), "--set", "data.source=idx", "--set", "data.path=."]) == 2
    assert "not a valid gzip file" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_ranks_that_are_there_already(mpidl_here):
    ended = mpidl_here("train", DIGITS, "-n", "4", PMI_RANK="0", PMI_SIZE="3")
    assert ended.stderr == "mpidl: -n 4: there are 3 ranks already, leave -n out\n"
    assert ended.returncode == 2
