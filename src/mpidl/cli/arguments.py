"""The commands and their arguments, as ``mpidl --help`` lists them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpidl.cli import commands, seeing
from mpidl.errors import UsageError, quoted, shown
from mpidl.paths import measured_file, user_path
from mpidl.version import VERSION

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction["_Parser"]


#: The most numbers of nodes that a range such as ``1-8`` stands for.
LONGEST = 1000

#: What commands that build the model of a configuration say of it.
TRUST = (
    "What data.factory, model.factory, model.loss, rate.schedule, run.loggers and run.metrics name, module:function, "
    "is code that runs: take configurations and runs only from people whom you trust."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{shown(message, 300)} (see `{self.prog} --help`)")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return a command's arguments from `argv`, by default the process's; raise UsageError if they are wrong.

    Their ``command`` is the function of `mpidl.cli.commands` or `mpidl.cli.seeing` that takes them.
    """
    parser = _Parser(prog="mpidl", description="DistBelief on MPI: training through a sharded parameter server.")
    parser.add_argument("--version", action="version", version=f"mpidl {VERSION}")
    parsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (
        _add_train, _add_run_script, _add_report, _add_top, _add_evaluate, _add_export, _add_predict, _add_simulate,
        _add_data, _add_plan, _add_submit, _add_doctor,
    ):  # fmt: skip
        add(parsers)
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


def _add_train(parsers: Parsers) -> None:
    train = parsers.add_parser(
        "train",
        help="train a model",
        description=f"Train a model. Without -n and mpirun: in one process, no MPI needed. {TRUST}",
    )
    train.add_argument(
        "config", metavar="CONFIG", nargs="?", type=user_path, help="a TOML file, such as jobs/digits.toml"
    )
    train.add_argument("-n", dest="ranks", metavar="RANKS", type=int, help="number of ranks to start with mpirun")
    _add_overrides(train)
    train.add_argument(
        "--resume", metavar="RUN_DIR", type=user_path,
        help="continue from a run's last checkpoint, on any number of ranks; CONFIG is the run's own if not given",
    )  # fmt: skip
    _add_retries(train)
    _add_json(train, "the summary")
    train.set_defaults(command=commands.run_train)


def _add_run_script(parsers: Parsers) -> None:
    run = parsers.add_parser(
        "run",
        help="run a Python script that trains",
        usage="mpidl run [-n RANKS] [--retries K] [--resume RUN_DIR] SCRIPT [-n RANKS] [ARGUMENTS ...]",
        description=(
            "Run a Python script that calls mpidl.train, on the ranks of an MPI job. Without -n and mpirun: in one "
            "process. ARGUMENTS are the script's. The script that a run names is code that runs, too."
        ),
    )
    run.add_argument("script", metavar="SCRIPT", nargs="?", type=user_path, help="a Python script, such as train.py")
    run.add_argument("-n", dest="ranks", metavar="RANKS", type=int, help="number of ranks to start with mpirun")
    run.add_argument(
        "--resume", metavar="RUN_DIR", type=user_path,
        help="continue the job that this run belongs to: its trainings continue from their last checkpoints; SCRIPT "
        "and ARGUMENTS are the job's own if not given",
    )  # fmt: skip
    _add_retries(run)
    run.set_defaults(command=commands.run_script)


def _add_report(parsers: Parsers) -> None:
    report = parsers.add_parser(
        "report",
        help="draw runs on a page",
        description=(
            "Write a page, one HTML file that needs no network: the curves of a run, its ranks, events and "
            "configuration. Those of several runs are drawn over each other. A run may still be running. Or, with "
            "--trace, write the timelines of all ranks of runs with run.trace."
        ),
    )
    report.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", help="such as runs/digits; exactly this run is taken")
    report.add_argument(
        "-o", "--output", metavar="FILE.html", type=user_path,
        help="the file to write, in place of an earlier page; report.html if not given: in RUN_DIR, or, of several "
        "runs, here",
    )  # fmt: skip
    report.add_argument(
        "--to", metavar="FORMAT", help="tensorboard: write event files instead, into the directory -o or in RUN_DIR"
    )
    report.add_argument(
        "--trace", metavar="FILE.json.gz", type=user_path,
        help="write timelines instead, for ui.perfetto.dev or chrome://tracing; those of several runs begin together",
    )  # fmt: skip
    report.add_argument(
        "--force", action="store_true", help="replace FILE.html even if it is no such page, or FILE.json.gz"
    )
    report.set_defaults(command=seeing.run_report)


def _add_evaluate(parsers: Parsers) -> None:
    evaluate = parsers.add_parser(
        "evaluate", help="test a trained model", description=f"Test the model of a run's last checkpoint. {TRUST}"
    )
    _add_run(evaluate)
    _add_json(evaluate, "the result")
    evaluate.set_defaults(command=commands.run_evaluate)


def _add_export(parsers: Parsers) -> None:
    export = parsers.add_parser(
        "export",
        help="write a trained model to a file",
        description="Write the trained model of a run to a file, from its last checkpoint alone; no code of it runs.",
    )
    _add_run(export)
    export.add_argument("--to", metavar="FORMAT", required=True, help="safetensors, npz, torch (a state_dict) or onnx")
    export.add_argument(
        "-o", "--output", metavar="FILE", type=user_path,
        help="the file to write; model.safetensors, .npz, .pt or .onnx in the run's directory if not given",
    )  # fmt: skip
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    _add_json(export, "the result")
    export.set_defaults(command=commands.run_export)


def _add_predict(parsers: Parsers) -> None:
    predict = parsers.add_parser(
        "predict",
        help="write a trained model's outputs",
        description=f"Write a trained model's outputs for the samples of a file, or of the run's own data. {TRUST}",
    )
    _add_run(predict)
    predict.add_argument("data", metavar="DATA", help="a file .npy, .npz or .h5, or train, validation or test")
    predict.add_argument(
        "-o", "--output", metavar="FILE.h5", type=user_path, required=True,
        help="the file to write; its dataset outputs is (samples, ...)",
    )  # fmt: skip
    predict.add_argument("-n", dest="ranks", metavar="RANKS", type=int, help="number of ranks to start with mpirun")
    predict.add_argument("--force", action="store_true", help="replace FILE.h5 if it exists")
    _add_json(predict, "the result")
    predict.set_defaults(command=commands.run_predict)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=user_path,
        help="such as runs/digits; exactly this run is taken",
    )  # fmt: skip
    parser.add_argument("--newest", action="store_true", help="take the newest of runs/digits, runs/digits-2, ...")
    parser.add_argument("--step", metavar="STEP", help="take the checkpoint of this step, or the best one (best)")


def _add_simulate(parsers: Parsers) -> None:
    simulate = parsers.add_parser(
        "simulate",
        help="predict a run on a virtual cluster",
        description=f"Train on a virtual cluster, in this process: the arithmetic is real, only time is not. {TRUST}",
    )
    simulate.add_argument("config", metavar="CONFIG", type=user_path, help="a TOML file with a section [virtual]")
    simulate.add_argument("--replicas", metavar="N", type=int, required=True, help="number of replicas")
    _add_overrides(simulate)
    _add_json(simulate, "the summary")
    simulate.set_defaults(command=commands.run_simulate)


def _add_data(parsers: Parsers) -> None:
    data = parsers.add_parser("data", help="prepare data", description="Prepare data to train with.")
    kinds = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    pack = kinds.add_parser(
        "pack",
        help="make an HDF5 file from a folder of images",
        description=(
            'Make an HDF5 file, for data.source = "hdf5", from a folder of images. '
            "Each image is cut to its middle square. Images of 16 bits or floats keep their values."
        ),
    )
    pack.add_argument(
        "folder", metavar="FOLDER", type=user_path, help="a subfolder for each class, or train/ and val/ or test/"
    )
    pack.add_argument("file", metavar="FILE.h5", type=user_path, help="the file to write")
    pack.add_argument("--size", metavar="PIXELS", type=int, default=224, help="width and height; 224 if not given")
    tested = pack.add_mutually_exclusive_group()
    tested.add_argument("--test", metavar="FOLDER", type=user_path, help="folder of the images to test with")
    tested.add_argument(
        "--test-fraction", metavar="FRACTION", type=float, default=0.1,
        help="part of each class to test with, if there is no folder for that; 0.1 if not given",
    )  # fmt: skip
    pack.add_argument("--seed", metavar="SEED", type=int, default=0, help="seed of the order; 0 if not given")
    pack.add_argument("--force", action="store_true", help="replace FILE.h5 if it exists")
    _add_json(pack, "the result")
    pack.set_defaults(command=commands.run_pack)


def _add_top(parsers: Parsers) -> None:
    top = parsers.add_parser(
        "top",
        help="watch a run in a terminal",
        description=(
            "Show what each rank of a run does, its curve and its last events, from the run's files alone, on any node "
            "that sees them. Refreshes each second; q quits. Without a terminal: once, as text."
        ),
    )
    top.add_argument(
        "run_dir", metavar="RUN_DIR", nargs="?", type=user_path,
        help="such as runs/digits; the newest run in runs if not given",
    )  # fmt: skip
    top.set_defaults(command=seeing.run_top)


def _add_plan(parsers: Parsers) -> None:
    plan = parsers.add_parser(
        "plan",
        help="show the size of a job",
        description=(
            "Describe a job without training: its layers, their sizes, and the memory of each rank; and propose a "
            f"number of servers. {TRUST}"
        ),
    )
    plan.add_argument(
        "config", metavar="CONFIG", type=user_path, help="a TOML file, such as jobs/distbelief_speech.toml"
    )
    plan.add_argument(
        "--ranks", metavar="N", type=int,
        help="show the work of each of N ranks, and, without --set topology.servers, the best number of servers",
    )  # fmt: skip
    plan.add_argument(
        "--nodes", metavar="N,N-N,...", type=_numbers,
        help="compare these numbers of nodes: best topology, speed, hours, efficiency and cost of each",
    )  # fmt: skip
    plan.add_argument(
        "--ranks-per-node", metavar="N", type=int,
        help="number of ranks on each of these nodes; the cores of a measured node, or of this one, if not given",
    )  # fmt: skip
    plan.add_argument("--apply", action="store_true", help="write the proposed topology into CONFIG")
    _add_overrides(plan)
    _add_json(plan, "the plan")
    plan.set_defaults(command=commands.run_plan)


def _add_submit(parsers: Parsers) -> None:
    submit = parsers.add_parser(
        "submit",
        help="train in a batch job",
        description=(
            "Write a batch script for Slurm, PBS or Flux beside the runs, and submit it. The job saves before its time "
            "is up, queues itself again, and continues from its last checkpoint."
        ),
        usage="mpidl submit [CONFIG | SCRIPT | RUN_DIR] --nodes N --ranks-per-node N --time H:MM:SS [options] "
        "[-- ARGUMENTS ...]",
    )
    submit.add_argument(
        "config", metavar="CONFIG", nargs="?", type=user_path,
        help="a TOML file; a Python script, such as train.py, whose ARGUMENTS follow --; or a run to continue",
    )  # fmt: skip
    submit.add_argument(
        "--resume", metavar="RUN_DIR", type=user_path,
        help="continue a run; CONFIG or SCRIPT and its ARGUMENTS are the run's own if not given",
    )  # fmt: skip
    submit.add_argument("--nodes", metavar="N", type=int, required=True, help="number of nodes")
    submit.add_argument("--ranks-per-node", metavar="N", type=int, required=True, help="number of ranks on each node")
    submit.add_argument("--time", metavar="H:MM:SS", required=True, help="the job's time")
    submit.add_argument("--cores-per-rank", metavar="N", type=int, default=1, help="1 if not given")
    submit.add_argument("--gpus-per-node", metavar="N", type=int, default=0, help="0 if not given")
    submit.add_argument(
        "--memory-per-node", metavar="SIZE", help="such as 64G; what the queue gives by default if not given"
    )
    submit.add_argument("--queue", metavar="NAME", help="the job's queue, in Slurm its partition")
    submit.add_argument("--account", metavar="NAME", help="the account to charge")
    submit.add_argument(
        "--setup", metavar="LINE", action="append",
        help="a first line of the script, such as 'module load openmpi'; by default one that finds this mpidl",
    )  # fmt: skip
    submit.add_argument("--scheduler", metavar="NAME", help="slurm, pbs or flux; by default the one that is installed")
    submit.add_argument(
        "--mpi", metavar="NAME",
        help="start of the ranks under Slurm: srun with pmix (Open MPI) or pmi2 (MPICH, Intel MPI), or mpirun",
    )  # fmt: skip
    submit.add_argument("--print", dest="only_print", action="store_true", help="only print the script")
    _add_overrides(submit)
    submit.set_defaults(command=commands.run_submit)


def _add_doctor(parsers: Parsers) -> None:
    doctor = parsers.add_parser(
        "doctor", help="test this machine's MPI", description="Test the features and the speed of this machine's MPI."
    )
    doctor.add_argument(
        "--save", metavar="FILE", type=user_path, nargs="?", const=measured_file(),
        help="write measurements for plan and simulate to FILE or ~/.config/mpidl/measured.toml",
    )  # fmt: skip
    doctor.set_defaults(command=commands.run_doctor)


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for each in text.split(","):
        numbers = re.fullmatch(r"\s*(-?\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", each)
        first, last = (0, -1) if numbers is None else (int(numbers[1]), int(numbers[2] or numbers[1]))
        if not first <= last < first + LONGEST:
            raise UsageError(f"--nodes: expected numbers such as 1,2,4 or 1-4, found {quoted(text)}")
        found += range(first, last + 1)
    return found


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", dest="overrides", metavar="SECTION.KEY=VALUE", action="append", default=[],
        help="use VALUE instead of the configuration's; may be repeated",
    )  # fmt: skip


def _add_retries(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--retries", metavar="K", type=int, default=0,
        help="with -n: if the job fails, start it again from the last checkpoint, up to K times in a row without a new "
        "one",
    )  # fmt: skip


def _add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as one JSON object")
