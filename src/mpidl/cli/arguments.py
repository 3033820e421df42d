"""The commands and their arguments, as ``mpidl --help`` lists them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpidl.cli import commands, planning, seeing
from mpidl.errors import UsageError, quoted, shown
from mpidl.extras import require
from mpidl.launch.output import deliver
from mpidl.paths import measured_file, user_path
from mpidl.version import VERSION

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction["_Parser"]


#: The most numbers of nodes that a range such as ``1-8`` stands for.
LONGEST = 1000

#: What shells complete in place of names, besides the files of all other paths.
COMPLETED = {"RUN_DIR": "directory", "FOLDER": "directory", "DATA": "file"}

#: What commands that build the model of a configuration say of it.
TRUST = (
    "data.factory, model.factory, model.loss, rate.schedule, run.loggers and run.metrics name Python functions "
    "(module:function) that mpidl imports and calls: only use configurations and runs from people you trust."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{shown(message, 300)} (see `{self.prog} --help`)")

    def text(self, name: str, metavar: str, help: str, **options: Any) -> None:
        """Add an argument or, with all its names in a string, an option."""
        added: Any = self.add_argument(*name.split(), metavar=metavar, help=help, **options)
        if files := COMPLETED.get(metavar, "file" if options.get("type") is user_path else ""):
            added.complete = files  # for shtab

    def path(self, name: str, metavar: str, help: str, **options: Any) -> None:
        self.text(name, metavar, help, type=user_path, **options)

    def number(self, name: str, metavar: str, help: str, **options: Any) -> None:
        self.text(name, metavar, help, type=int, **options)

    def flag(self, name: str, help: str) -> None:
        self.add_argument(name, action="store_true", help=help)

    def ranks(self) -> None:
        self.number("-n", "RANKS", "number of ranks to start with mpirun", dest="ranks")

    def run(self) -> None:
        self.path("run_dir", "RUN_DIR", "such as runs/digits; exactly this run is taken")
        self.flag("--newest", "take the newest of runs/digits, runs/digits-2, ...")
        self.text("--step", "STEP", "take the checkpoint of this step, or the best one (best)")

    def overrides(self) -> None:
        told = "use VALUE instead of the configuration's; may be repeated"
        self.text("--set", "SECTION.KEY=VALUE", told, dest="overrides", action="append", default=[])

    def retries(self) -> None:
        told = "with -n: if the job fails, start it again from the last checkpoint, up to K times in a row without a "
        self.number("--retries", "K", f"{told}new one", default=0)

    def json(self, what: str) -> None:
        self.flag("--json", f"print {what} as one JSON object")


class _Completion(argparse.Action):
    """Prints a shell's script, and ends the process."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, shell: Any, *_: Any) -> None:
        script = require("shtab", "completion").complete(parser, shell)
        deliver(script.rstrip("\n"), needed=True, verbatim=True)
        parser.exit()


def command_line() -> _Parser:
    """Return the parser of all commands."""
    parser = _Parser(prog="mpidl", description="DistBelief on MPI: training through a sharded parameter server.")
    parser.add_argument("--version", action="version", version=f"mpidl {VERSION}")
    told = "print the script by which bash, zsh or fish completes commands, options and files"
    parser.add_argument("--completion", action=_Completion, metavar="SHELL", choices=("bash", "zsh", "fish"), help=told)
    parsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (
        _add_init, _add_train, _add_run_script, _add_report, _add_top, _add_evaluate, _add_export, _add_predict,
        _add_simulate, _add_data, _add_plan, _add_submit, _add_doctor,
    ):  # fmt: skip
        add(parsers)
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return a command's arguments from `argv`, by default the process's; raise UsageError if they are wrong.

    Their ``command`` is the function that takes them, of `mpidl.cli`'s modules `commands`, `planning` or `seeing`.
    """
    parser = command_line()
    words = sys.argv[1:] if argv is None else list(argv)
    own, of_script = _split(words)
    arguments, unknown = parser.parse_known_args(own)
    if unknown:
        hint = ", those of a script follow --" if words[0] == "submit" else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    arguments.words, arguments.words_of_script = words, of_script
    return arguments


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return mpidl's own words and those of a script: what follows ``--``, or follows ``run SCRIPT [-n RANKS]``."""
    end = words.index("--") if "--" in words else len(words)
    if words[:1] == ["run"]:
        place = 1
        while place < end and words[place].startswith("-"):
            place += 1 + (words[place] in ("-n", "--resume", "--retries"))
        ranks_follow = not any(word.startswith("-n") for word in words[:place])
        place += 1
        if ranks_follow and place < end and words[place].startswith("-n"):
            place += 1 + (words[place] == "-n")
        end = min(end, place)
    return words[:end], words[end + 1 :] if words[end : end + 1] == ["--"] else words[end:]


def _command(
    parsers: Parsers, name: str, command: Callable[..., int], help: str, description: str, usage: str | None = None
) -> _Parser:
    parser = parsers.add_parser(name, help=help, description=description, usage=usage)
    parser.set_defaults(command=command)
    return parser


def _add_init(parsers: Parsers) -> None:
    about = "Write a job to begin with, which trains as it is: a commented configuration, and what it names."
    init = _command(parsers, "init", commands.run_init, "write a job to begin with", about)
    init.text("name", "NAME", "name of its files, and of the run; the example's if not given", nargs="?")
    init.text("--example", "EXAMPLE", "digits if not given, or another of --list", default="digits")
    init.flag("--list", "only list the examples")
    init.set_defaults(submission=_small_submission)
    told = "write a batch script for {} too, of one node and four ranks; `mpidl submit` writes those of any size"
    scheduler = init.add_mutually_exclusive_group()
    for name in ("Slurm", "PBS", "Flux"):
        option, words = f"--{name.lower()}", told.format(name)
        scheduler.add_argument(option, dest="scheduler", action="store_const", const=name.lower(), help=words)


def _small_submission(config: str, scheduler: str) -> argparse.Namespace:
    """Return the arguments of ``mpidl submit`` for a configuration on one node and four ranks."""
    words = f"submit {config} --nodes 1 --ranks-per-node 4 --time 30:00 --scheduler {scheduler} --print"
    return parse(words.split())


def _add_train(parsers: Parsers) -> None:
    about = f"Train a model. Without -n and mpirun: in one process, no MPI needed. {TRUST}"
    train = _command(parsers, "train", commands.run_train, "train a model", about)
    train.path("config", "CONFIG", "a TOML file, such as jobs/digits.toml", nargs="?")
    train.ranks()
    train.overrides()
    told = "continue from a run's last checkpoint, on any number of ranks; CONFIG is the run's own if not given"
    train.path("--resume", "RUN_DIR", told)
    train.retries()
    train.json("the summary")


def _add_run_script(parsers: Parsers) -> None:
    about = (
        "Run a Python script that calls mpidl.train, on the ranks of an MPI job. Without -n and mpirun: in one "
        "process. ARGUMENTS are the script's. --resume runs the script that the run names."
    )
    usage = "mpidl run [-n RANKS] [--retries K] [--resume RUN_DIR] SCRIPT [-n RANKS] [ARGUMENTS ...]"
    run = _command(parsers, "run", commands.run_script, "run a Python script that trains", about, usage)
    run.path("script", "SCRIPT", "a Python script, such as train.py", nargs="?")
    run.ranks()
    told = (
        "continue the job that this run belongs to: its trainings continue from their last checkpoints; SCRIPT and "
        "ARGUMENTS are the job's own if not given"
    )
    run.path("--resume", "RUN_DIR", told)
    run.retries()


def _add_report(parsers: Parsers) -> None:
    about = (
        "Write a page, one HTML file that needs no network: the curves of a run, its ranks, events and configuration. "
        "Those of several runs are drawn over each other. A run may still be running. Or, with --trace, write the "
        "timelines of all ranks of runs with run.trace."
    )
    report = _command(parsers, "report", seeing.run_report, "draw runs on a page", about)
    report.text("run_dirs", "RUN_DIR", "such as runs/digits; exactly this run is taken", nargs="+")
    told = "the file to write, in place of an earlier page; report.html if not given: in RUN_DIR, or, of several runs, "
    report.path("-o --output", "FILE.html", f"{told}here")
    report.text("--to", "FORMAT", "tensorboard: write event files instead, into the directory -o or in RUN_DIR")
    told = "write timelines instead, for ui.perfetto.dev or chrome://tracing; those of several runs begin together"
    report.path("--trace", "FILE.json.gz", told)
    report.flag("--force", "replace FILE.html even if it is no such page, or FILE.json.gz")


def _add_evaluate(parsers: Parsers) -> None:
    about = f"Test the model of a run's last checkpoint. {TRUST}"
    evaluate = _command(parsers, "evaluate", commands.run_evaluate, "test a trained model", about)
    evaluate.run()
    evaluate.json("the result")


def _add_export(parsers: Parsers) -> None:
    about = "Write the trained model of a run to a file, from its last checkpoint alone; no code of it runs."
    export = _command(parsers, "export", commands.run_export, "write a trained model to a file", about)
    export.run()
    export.text("--to", "FORMAT", "safetensors, npz, torch (a state_dict) or onnx", required=True)
    told = "the file to write; model.safetensors, .npz, .pt or .onnx in the run's directory if not given"
    export.path("-o --output", "FILE", told)
    export.flag("--force", "replace FILE if it exists")
    export.json("the result")


def _add_predict(parsers: Parsers) -> None:
    about = f"Write a trained model's outputs for the samples of a file, or of the run's own data. {TRUST}"
    predict = _command(parsers, "predict", commands.run_predict, "write a trained model's outputs", about)
    predict.run()
    predict.text("data", "DATA", "a file .npy, .npz or .h5, or train, validation or test")
    told = "the file to write; its dataset outputs is (samples, ...)"
    predict.path("-o --output", "FILE.h5", told, required=True)
    predict.ranks()
    predict.flag("--force", "replace FILE.h5 if it exists")
    predict.json("the result")


def _add_simulate(parsers: Parsers) -> None:
    about = f"Train on a virtual cluster, in this process: the arithmetic is real, only time is not. {TRUST}"
    simulate = _command(parsers, "simulate", planning.run_simulate, "predict a run on a virtual cluster", about)
    simulate.path("config", "CONFIG", "a TOML file with a section [virtual]")
    simulate.number("--replicas", "N", "number of replicas", required=True)
    simulate.overrides()
    simulate.json("the summary")


def _add_data(parsers: Parsers) -> None:
    data = parsers.add_parser("data", help="prepare data", description="Prepare data to train with.")
    kinds = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    about = (
        'Make an HDF5 file, for data.source = "hdf5", from a folder of images. Each image is cut to its middle square. '
        "Images of 16 bits or floats keep their values."
    )
    pack = _command(kinds, "pack", commands.run_pack, "make an HDF5 file from a folder of images", about)
    pack.path("folder", "FOLDER", "a subfolder for each class, or train/ and val/ or test/")
    pack.path("file", "FILE.h5", "the file to write")
    pack.number("--size", "PIXELS", "width and height; 224 if not given", default=224)
    tested = pack.add_mutually_exclusive_group()
    images: Any = tested.add_argument(
        "--test", metavar="FOLDER", type=user_path, help="folder of the images to test with"
    )
    images.complete = COMPLETED["FOLDER"]
    tested.add_argument(
        "--test-fraction", metavar="FRACTION", type=float, default=0.1,
        help="part of each class to test with, if there is no folder for that; 0.1 if not given",
    )  # fmt: skip
    pack.number("--seed", "SEED", "seed of the order; 0 if not given", default=0)
    pack.flag("--force", "replace FILE.h5 if it exists")
    pack.json("the result")


def _add_top(parsers: Parsers) -> None:
    about = (
        "Show what each rank of a run does, its curve and its last events, from the run's files alone, on any node "
        "that sees them. Refreshes each second; q quits. Without a terminal: once, as text."
    )
    top = _command(parsers, "top", seeing.run_top, "watch a run in a terminal", about)
    top.path("run_dir", "RUN_DIR", "such as runs/digits; the newest run in runs if not given", nargs="?")


def _add_plan(parsers: Parsers) -> None:
    about = (
        "Describe a job without training: its layers, their sizes, and the memory of each rank; and propose a number "
        f"of servers. {TRUST}"
    )
    plan = _command(parsers, "plan", planning.run_plan, "show the size of a job", about)
    plan.path("config", "CONFIG", "a TOML file, such as jobs/distbelief_speech.toml")
    told = "show the work of each of N ranks, and, without --set topology.servers, the best number of servers"
    plan.number("--ranks", "N", told)
    told = "compare these numbers of nodes: best topology, speed, hours, efficiency and cost of each"
    plan.text("--nodes", "N,N-N,...", told, type=_numbers)
    told = "number of ranks on each of these nodes; the cores of a measured node, or of this one, if not given"
    plan.number("--ranks-per-node", "N", told)
    plan.flag("--apply", "write the proposed topology into CONFIG")
    plan.overrides()
    plan.json("the plan")


def _add_submit(parsers: Parsers) -> None:
    about = (
        "Write a batch script for Slurm, PBS or Flux beside the runs, and submit it. The job saves before its time is "
        "up, queues itself again, and continues from its last checkpoint."
    )
    usage = (
        "mpidl submit [CONFIG | SCRIPT | RUN_DIR] --nodes N --ranks-per-node N --time H:MM:SS [options] "
        "[-- ARGUMENTS ...]"
    )
    submit = _command(parsers, "submit", commands.run_submit, "train in a batch job", about, usage)
    told = "a TOML file; a Python script, such as train.py, whose ARGUMENTS follow --; or a run to continue"
    submit.path("config", "CONFIG", told, nargs="?")
    told = "continue a run; CONFIG or SCRIPT and its ARGUMENTS are the run's own if not given"
    submit.path("--resume", "RUN_DIR", told)
    submit.number("--nodes", "N", "number of nodes", required=True)
    submit.number("--ranks-per-node", "N", "number of ranks on each node", required=True)
    submit.text("--time", "H:MM:SS", "the job's time", required=True)
    submit.number("--cores-per-rank", "N", "1 if not given", default=1)
    submit.number("--gpus-per-node", "N", "0 if not given", default=0)
    submit.text("--memory-per-node", "SIZE", "such as 64G; what the queue gives by default if not given")
    submit.text("--queue", "NAME", "the job's queue, in Slurm its partition")
    submit.text("--account", "NAME", "the account to charge")
    told = "a first line of the script, such as 'module load openmpi'; by default one that finds this mpidl"
    submit.text("--setup", "LINE", told, action="append")
    told = "an archive of the ranks' environment, by conda-pack or venv-pack, to unpack into each node's memory"
    submit.path("--env", "FILE", told)
    submit.text("--scheduler", "NAME", "slurm, pbs or flux; by default the one that is installed")
    told = "start of the ranks under Slurm: srun with pmix (Open MPI) or pmi2 (MPICH, Intel MPI), or mpirun"
    submit.text("--mpi", "NAME", told)
    submit.add_argument("--print", dest="only_print", action="store_true", help="only print the script")
    submit.overrides()


def _add_doctor(parsers: Parsers) -> None:
    about = "Test the features and the speed of this machine's MPI."
    doctor = _command(parsers, "doctor", commands.run_doctor, "test this machine's MPI", about)
    told = "write measurements for plan and simulate to FILE or ~/.config/mpidl/measured.toml"
    doctor.path("--save", "FILE", told, nargs="?", const=measured_file())
    told = "only compile all loops and kernels into Numba's cache, once for all users of a read-only installation"
    doctor.flag("--compile", told)


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for each in text.split(","):
        numbers = re.fullmatch(r"\s*(-?\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", each)
        first, last = (0, -1) if numbers is None else (int(numbers[1]), int(numbers[2] or numbers[1]))
        if not first <= last < first + LONGEST:
            raise UsageError(f"--nodes: expected numbers such as 1,2,4 or 1-4, found {quoted(text)}")
        found += range(first, last + 1)
    return found
