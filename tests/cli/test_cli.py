"""The command line: help, what a command prints, and its exit code."""

import ast
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from PIL import Image

from mpidl.algorithms import ALGORITHMS
from mpidl.cli import main
from mpidl.config import SECTIONS
from mpidl.data import SOURCES
from mpidl.errors import MpidlError
from mpidl.nn import LAYERS
from mpidl.rules import RULES

JOBS = Path(__file__).parents[2] / "jobs"
DIGITS = JOBS / "digits.toml"


def test_a_hundred_thousand_ranks_are_planned(capsys):
    assert main(["plan", str(DIGITS), "--ranks", "100000", "--set", "topology.servers=1000"]) == 0
    assert "100000 ranks of one node" in capsys.readouterr().out


def test_the_home_directory_is_known(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["train", str(DIGITS), "--set", "run.dir=~/my runs", "--set", "run.steps=1"]) == 0
    assert (tmp_path / "my runs" / "digits" / "summary.json").exists()
    capsys.readouterr()


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["data", "pack", "--help"], ["--version"]])
def test_help(mpidl, arguments):
    ended = mpidl(*arguments)
    assert ended.stdout.startswith(("usage: mpidl", "mpidl 0."))
    assert (ended.returncode, ended.stderr) == (0, "")


def is_function(annotation):
    """Return whether a key's values may name functions."""
    own = any((getattr(each, "extra", None) or {}).get("runs code") for each in getattr(annotation, "__metadata__", ()))
    return own or any(map(is_function, get_args(annotation)))


def test_help_and_readme_name_the_keys_whose_values_are_code(capsys):
    sections = [*SECTIONS.items(), *(("data", cls) for cls in SOURCES.values())]
    sections += [("algorithm", cls) for cls in ALGORITHMS.values()] + [("server", cls) for cls in RULES.values()]
    sections += [("model.layer", cls) for cls in LAYERS.values()]
    annotations = [(name, get_type_hints(cls, include_extras=True)) for name, cls in sections]
    code = {f"{name}.{key}" for name, keys in annotations for key, each in keys.items() if is_function(each)}
    # Whatever finds a function by its name has the key of that name.
    trees = [ast.parse(path.read_text()) for path in (JOBS.parent / "src").rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [
        ast.unparse(node.args[0]) for node in calls if getattr(node.func, "id", "") in ("call", "find") and node.args
    ]
    assert {match[1] for key in found if (match := re.match(r"f?'([a-z]+\.[a-z]+)", key))} == code
    texts = [(JOBS.parent / "README.rst").read_text()]
    for command in ("train", "evaluate", "predict", "simulate", "plan"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        texts.append(capsys.readouterr().out)
    for text in texts:
        words = " ".join(text.replace("`", "").replace('"', "").split())
        (named,) = re.findall(
            r"((?:[a-z]+\.[a-z]+(?:, | and )?)+) name Python functions \(module:function\) that", words
        )
        assert set(re.findall(r"[a-z]+\.[a-z]+", named)) == code


def test_help_loads_nothing_heavy(bare_environment):
    heavy = ("numpy", "msgspec", "numba", "h5py", "mpi4py", "tqdm", "simpy", "ctypes", "subprocess")
    code = (
        "import sys; from mpidl.cli import main\n"
        "try: main(['--help'])\n"
        f"finally: print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=bare_environment, capture_output=True, text=True, check=False
    )
    assert ended.stderr == "\n"


def test_nothing_follows_the_summary_on_stdout(mpidl, tmp_path):
    """As with the real colorama where stdout is a terminal, which launchers give to ranks."""
    colorama = tmp_path / "colorama" / "__init__.py"
    colorama.parent.mkdir()
    colorama.write_text(
        "import atexit\n__version__ = '0.4.6'\ninit = lambda: atexit.register(print, 'reset')\n"
        "reinit = deinit = lambda: None\nclass Fore:\n    __getattr__ = lambda self, name: ''\nFore = Style = Fore()\n"
    )
    ended = mpidl("train", DIGITS, "--set", "run.epochs=1", "--json", PYTHONPATH=str(tmp_path))
    assert json.loads(ended.stdout.splitlines()[-1])["epochs"] == 1


def test_threads_are_limited_before_numpy_is_loaded(bare_environment):
    code = (
        "import os, sys; from mpidl.cli import main; from mpidl.launch.environment import THREAD_VARIABLES\n"
        "class Watch:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'numpy': print(*(os.environ.get(v) for v in THREAD_VARIABLES))\n"
        "sys.meta_path.insert(0, Watch())\n"
        f"main(['train', '{DIGITS}', '--set', 'run.epoch=1'])"
    )
    variables = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"), "")
    bare_environment = {name: value for name, value in bare_environment.items() if name not in variables}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=bare_environment | {"OMP_NUM_THREADS": "7", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "9999"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == ["7", "1", "1", "1"]


def test_a_packed_folder_can_be_trained_with(mpidl_here, tmp_path):
    for name, colour in (("dark", "black"), ("light", "white")):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (20, 15), colour).save(folder / f"{number}.png")
    packed = mpidl_here("data", "pack", "images", "images.h5", "--size", "6")
    assert packed.stdout == "images.h5: 36 images to train with, 4 to test with, 2 classes\n"
    assert (packed.stderr, packed.returncode) == ("", 0)
    (tmp_path / "job.toml").write_text(
        """
        [run]
        epochs = 30
        [data]
        source = "hdf5"
        path = "images.h5"
        batch = 4
        [data.augment]
        reflect = true
        translate = 2
        [[model.layer]]
        type = "dense"
        units = 2
        """
    )
    trained = mpidl_here("train", "job.toml", "--set", "data.augment.noise=0.1")
    assert trained.returncode == 0
    assert "test accuracy 1.0000" in trained.stdout
    assert "noise = 0.1" in (tmp_path / "runs" / "job" / "config.toml").read_text()


def raising(error):
    def command(arguments):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MpidlError("the disk is full"), 1, "mpidl: the disk is full\n"),
        (ValueError("two\nlines"), 1, "mpidl: ValueError: two lines (MPIDL_DEBUG=1 shows where)\n"),
        (KeyboardInterrupt(), 1, "mpidl: interrupted\n"),
    ],
)
def test_what_a_command_raises(monkeypatch, capsys, error, code, line):
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "MPIDL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("mpidl.cli.commands.run_evaluate", raising(error))
    assert main(["evaluate", "runs/x"]) == code
    assert capsys.readouterr().err == line


def test_debugging_shows_where(monkeypatch, capsys):
    monkeypatch.setenv("MPIDL_DEBUG", "1")
    monkeypatch.setattr("mpidl.cli.commands.run_evaluate", raising(ValueError("what")))
    assert main(["evaluate", "runs/x"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_junk_of_a_launcher_is_told_while_debugging(mpidl):
    ended = mpidl("train", DIGITS, PMI_RANK="junk", PMI_SIZE="2", MPIDL_DEBUG="1")
    assert ended.stderr.splitlines()[-1].startswith("mpidl: PMI_RANK=junk in the environment: expected a number")
    assert ended.returncode == 2


def summary(**more):
    return {
        "algorithm": "downpour",
        "servers": 1,
        "replicas": 2,
        "epochs": 2.5,
        "ranks": 4,
        "samples": 100,
        "seconds": 2.0,
        "samples_per_second": 50.0,
        "train_loss": 0.25,
        "test_loss": float("nan"),
        "test_accuracy": None,
        "staleness": {"mean": 0.5, "p50": 0, "p99": 3, "max": 4},
        "run_dir": "runs/x",
        **more,
    }


@pytest.mark.parametrize(("interrupted", "code"), [(False, 0), (True, 75)])
def test_the_summary(monkeypatch, capsys, interrupted, code):
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    given = []
    result = summary(interrupted=interrupted)
    monkeypatch.setattr("mpidl.runs.start.run", lambda config, resume: given.append((config, resume)) or result)
    assert main(["train", str(DIGITS), "-n", "1", "--set", "run.epochs=3", "--json"]) == code
    assert '"test_loss":null' in capsys.readouterr().out.splitlines()[-1]
    assert main(["train", str(DIGITS), "--resume", "runs/x"]) == code
    assert [(config.run.epochs, resume) for config, resume in given] == [(3, None), (30, Path("runs/x"))]
    text = capsys.readouterr().out
    assert "100 samples in 2.0 s, 50 samples/s\n" in text
    assert "downpour: 1 server, 2 replicas, staleness mean 0.50, p50 0, p99 3, max 4\n" in text
    assert ("runs/x: 2.5 epochs done; continue with `mpidl train --resume runs/x -n 4`\n" in text) == interrupted


def test_a_name_like_an_option_reaches_the_ranks_as_a_name(monkeypatch, bare_environment, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in os.environ.keys() - bare_environment.keys() - {"PATH"}:
        monkeypatch.delenv(name)
    (tmp_path / "-j.toml").write_text(DIGITS.read_text())
    (tmp_path / "-j.py").write_text("")
    given = []
    monkeypatch.setattr("mpidl.launch.mpiexec.launch", lambda ranks, words, *others, **named: given.append(words) or 0)
    for words in (["train", "./-j.toml"], ["run", "./-j.py"], ["predict", "./-run", "./-x.npy", "-o", "./-y.h5"]):
        assert main([*words, "-n", "4"]) == 0
    predict = ["predict", "./-run", "./-x.npy", "--output=-y.h5"]
    assert given == [["train", "./-j.toml"], ["run", "./-j.py", "--"], predict]


def test_names_do_not_control_a_terminal(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    directory = "a\x1b[31m\x9b31m\u202e\nmpidl: b"
    train = ["train", str(DIGITS), f"--set=run.dir={json.dumps(directory)}", "--set=run.steps=1"]
    shown = []
    for words in (train, [*train, "--json"], ["evaluate", f"{directory}/digits", "--json"], ["evaluate", directory]):
        main(words)
        shown.append(capfd.readouterr())
    for text in (text for each in shown for text in each):
        assert all(line.isprintable() and not line.startswith("mpidl: b") for line in text.splitlines())
    assert json.loads(shown[1].out)["run_dir"] == f"{directory}/digits-2"
    assert r"a\x1b[31m\x9b31m\u202e\nmpidl: b/digits: " in shown[0].err


class Lost(io.StringIO):
    """A stdout whose disk is full, or whose reader has gone."""

    def __init__(self, why):
        super().__init__()
        self.why = why

    def flush(self):
        raise OSError(self.why, os.strerror(self.why))


@pytest.mark.parametrize(
    ("stdout", "options", "why"),
    [
        (Lost(errno.ENOSPC), ["--json"], "No space left on device"),
        (Lost(errno.EDQUOT), [], "Disk quota exceeded"),
        (Lost(errno.EPIPE), ["--json"], "Broken pipe"),
        (Lost(errno.EPIPE), [], None),
        (None, ["--json"], "closed"),
        (None, [], None),
    ],
)
@pytest.mark.parametrize(("interrupted", "code"), [(False, 1), (True, 75)])
def test_a_summary_that_is_lost_is_reported(monkeypatch, capsys, stdout, options, why, interrupted, code):
    monkeypatch.setattr("mpidl.runs.start.run", lambda config, resume: summary(interrupted=interrupted))
    with monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", stdout)
        ended = main(["train", str(DIGITS), "-n", "1", *options])
    line = f"mpidl: stdout: {why}, the output is lost; runs/x/summary.json has the summary\n"
    assert (ended, capsys.readouterr().err) == (code if why or interrupted else 0, line if why else "")


@pytest.mark.parametrize("arguments", [["plan", DIGITS, "--json"], ["plan", DIGITS]])
def test_a_plan_that_finds_no_space_is_an_error(monkeypatch, capsys, arguments):
    with monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", Lost(errno.ENOSPC))
        assert main([*map(str, arguments)]) == 1
    assert capsys.readouterr().err == "mpidl: stdout: No space left on device, the output is lost\n"


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_run_outlives_its_log(bare_environment, tmp_path, redirection):
    words = [sys.executable, "-P", "-m", "mpidl", "train", DIGITS, "--set", "run.steps=3", "--json"]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    ended = subprocess.run(shell, cwd=tmp_path, env=bare_environment, stdout=subprocess.PIPE, text=True, timeout=300)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["pushes"] == 3


def test_a_resumed_run_of_sandblaster_has_its_length_in_all(tmp_path, capsys):
    layer = '[[model.layer]]\ntype = "dense"\nunits = 10\n'
    (tmp_path / "job.toml").write_text(
        f'[run]\nepochs = 4\ndir = "{tmp_path}"\n[data]\nsource = "digits"\n{layer}[algorithm]\nname = "sandblaster"\n'
    )
    assert main(["train", str(tmp_path / "job.toml")]) == 0
    shown = capsys.readouterr()
    first = json.loads((tmp_path / "job" / "summary.json").read_text())["iteration"]
    done = f"{first['number']} iterations, {first['total_evaluations']} evaluations"
    assert shown.out.endswith(f"{tmp_path / 'job'}: {done} done\n")
    assert f"\nobjective {first['objective']:.4g}, gradient norm {first['gradient_norm']:.4g}\n" in shown.out
    assert re.search(rf"  iteration {first['number']}  .*objective {first['objective']:.4g}, test ", shown.err)
    assert "epoch" not in shown.err
    assert main(["train", "--resume", str(tmp_path / "job"), "--set", "run.epochs=9", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 9 <= summary["epochs"] < 11
    last = summary["iteration"]
    assert last["number"] > first["number"]
    assert last["total_evaluations"] >= first["total_evaluations"] + last["number"] - first["number"]
