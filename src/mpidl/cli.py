"""The command ``mpidl``. What a command needs is imported when it runs: NumPy only after threads are limited."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpidl.errors import MpidlError, UsageError, printable, quoted, shown
from mpidl.launch import environment, marks, signals
from mpidl.launch.output import STDERR, STDOUT, readerless
from mpidl.paths import user_path
from mpidl.report import results
from mpidl.version import VERSION

if TYPE_CHECKING:
    from mpidl.config import Config

    Commands = argparse._SubParsersAction["_Parser"]

__all__ = ["main"]

#: Exit code of a run that a signal stopped after it was saved (EX_TEMPFAIL: schedulers take it as "requeue me").
INTERRUPTED = 75
#: The most ranks, replicas or pixels that a command takes.
MOST = 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the word ``mpidl``; those of the process by default.

    Returns
    -------
    int
        Exit code: 0 done; 1 failed; 2 wrong arguments or configuration; 75 stopped by a signal after saving.
    """
    command: Callable[[argparse.Namespace], int] | None = None
    try:
        arguments = _parser().parse_args(argv)
        command = arguments.command
        if command not in (_train, _simulate):
            signals.release()
        elif environment.world().size == 1:
            # Before a run begins nothing has to be saved, and who waits at a terminal may break off.
            signal.signal(signal.SIGINT, _break_off)
            signals.release({signal.SIGINT})
        return command(arguments)
    except MpidlError as error:
        if os.environ.get("MPIDL_DEBUG") and environment.world().size == 1:
            traceback.print_exc()
        if _first_rank():
            _complain(str(error))
        return error.exit_code
    except MemoryError as error:
        _complain(f"out of memory: {error or 'what the configuration asks for does not fit'}")
        return UsageError.exit_code
    except KeyboardInterrupt:
        if _first_rank():
            _complain("interrupted")
        return INTERRUPTED if command in (_train, _simulate) else 1
    except BrokenPipeError:
        # The reader of stdout is gone; nothing may be flushed into its pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("MPIDL_DEBUG"):
            traceback.print_exc()
        rank, size, _ = environment.world()
        who = f"rank {rank}: " if size > 1 else ""
        _complain(f"{who}{type(error).__name__}: {error} (MPIDL_DEBUG=1 shows where)")
        return 1


def _break_off(number: int, frame: Any) -> None:
    """End the process at once: an exception could get lost in a module that is being imported."""
    _complain("interrupted")
    os._exit(INTERRUPTED)


def _first_rank() -> bool:
    try:
        return environment.world().rank == 0
    except UsageError:
        return True


def _complain(text: str) -> None:
    with readerless(STDERR, lambda: None):
        print(f"mpidl: {printable(text)}", file=sys.stderr, flush=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{shown(message, 300)} (see `{self.prog} --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="mpidl", description="DistBelief on MPI: training through a sharded parameter server.")
    parser.add_argument("--version", action="version", version=f"mpidl {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_train, _add_evaluate, _add_simulate, _add_data, _add_plan, _add_doctor):
        add(commands)
    return parser


def _add_train(commands: Commands) -> None:
    train = commands.add_parser(
        "train",
        help="train a model",
        description=(
            "Train a model. Without -n and mpirun: in one process, no MPI needed. "
            "A configuration's model.factory is code that runs: take configurations only from people whom you trust."
        ),
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
    _add_json(train, "the summary")
    train.set_defaults(command=_train)


def _add_evaluate(commands: Commands) -> None:
    evaluate = commands.add_parser(
        "evaluate", help="test a trained model", description="Test the model of a run's last checkpoint."
    )
    evaluate.add_argument(
        "run_dir", metavar="RUN_DIR", type=user_path,
        help="such as runs/digits; the newest of runs/digits, runs/digits-2, ... is tested",
    )  # fmt: skip
    evaluate.add_argument("--exact", action="store_true", help="test the run in RUN_DIR itself")
    _add_json(evaluate, "the result")
    evaluate.set_defaults(command=_evaluate)


def _add_simulate(commands: Commands) -> None:
    simulate = commands.add_parser(
        "simulate",
        help="predict a run on a virtual cluster",
        description="Train on a virtual cluster, in this process: the arithmetic is real, only time is not.",
    )
    simulate.add_argument(
        "config", metavar="CONFIG", nargs="?", type=user_path, help="a TOML file with a section [virtual]"
    )
    simulate.add_argument("--replicas", metavar="N", type=int, help="number of replicas")
    simulate.add_argument(
        "--replay", metavar="RUN_DIR", type=user_path,
        help="instead: repeat, in one process, a run on ranks that was recorded (run.record = true)",
    )  # fmt: skip
    _add_overrides(simulate)
    _add_json(simulate, "the summary")
    simulate.set_defaults(command=_simulate)


def _add_data(commands: Commands) -> None:
    data = commands.add_parser("data", help="prepare data", description="Prepare data to train with.")
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
    _add_json(pack, "what was written")
    pack.set_defaults(command=_pack)


def _add_plan(commands: Commands) -> None:
    plan = commands.add_parser(
        "plan",
        help="say how large a job would be",
        description="Describe a job without training: its layers, their sizes, and what each rank would hold.",
    )
    plan.add_argument(
        "config", metavar="CONFIG", type=user_path, help="a TOML file, such as jobs/distbelief_speech.toml"
    )
    plan.add_argument("--ranks", metavar="N", type=int, help="also say what each of N ranks would do")
    _add_overrides(plan)
    _add_json(plan, "the plan")
    plan.set_defaults(command=_plan)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor", help="test this machine's MPI", description="Test what this machine's MPI can do, and how fast."
    )
    doctor.set_defaults(command=_doctor)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", dest="overrides", metavar="SECTION.KEY=VALUE", action="append", default=[],
        help="use VALUE instead of the configuration's; may be repeated",
    )  # fmt: skip


def _add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as one JSON object")


def _train(arguments: argparse.Namespace) -> int:
    started = environment.world()
    ranks = started.size if arguments.ranks is None else arguments.ranks
    _check_number("-n", ranks)
    if started.size > 1 and ranks != started.size:
        raise UsageError(f"-n {ranks}: there are {started.size} ranks already, leave -n out")
    if ranks > started.size:
        return _launch(arguments, ranks)
    environment.limit_threads()
    from mpidl.runs.agreement import together

    config = together(lambda: _config(arguments))
    from mpidl.runs.start import run

    summary = run(config, resume=arguments.resume)
    code = INTERRUPTED if summary.get("interrupted") else 0
    if started.rank == 0:
        marks.tell(marks.saved(code))
        if started.size > 1:
            # The end of the progress bar is still on its way through the launcher.
            time.sleep(0.2)
        # A run is done, whether anyone reads of it or not.
        with readerless(STDOUT, lambda: None):
            _show(summary, arguments.json, results.summary)
    return code


def _launch(arguments: argparse.Namespace, ranks: int) -> int:
    from mpidl.launch.mpiexec import check_memory, launch
    from mpidl.report.screen import Screen
    from mpidl.topology.roles import assign

    check_memory(ranks)
    config = _config(arguments)
    assign([0] * ranks, config.servers)
    passed = ["train"]
    if arguments.config is not None:
        passed.append(str(arguments.config))
    passed += [f"--set={override}" for override in arguments.overrides]
    if arguments.resume is not None:
        passed.append(f"--resume={arguments.resume}")
    if arguments.json:
        passed.append("--json")
    return launch(ranks, passed, Screen(), config.servers)


def _config(arguments: argparse.Namespace) -> Config:
    if arguments.config is None and arguments.resume is None:
        raise UsageError("train: expected CONFIG or --resume RUN_DIR (see `mpidl train --help`)")
    from mpidl.config import load

    return load(arguments.config or arguments.resume / "config.toml", arguments.overrides)


def _evaluate(arguments: argparse.Namespace) -> int:
    environment.limit_threads()
    from mpidl.runs.evaluate import evaluate, newest

    run = arguments.run_dir if arguments.exact else newest(arguments.run_dir)
    _show(evaluate(run), arguments.json, results.evaluation)
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    if environment.world().size > 1:
        raise UsageError("simulate: runs in one process, without mpirun")
    environment.limit_threads()
    from mpidl.runs.replay import replay
    from mpidl.runs.simulate import simulate

    if arguments.replay is not None:
        _show(replay(arguments.replay), arguments.json, results.replay)
        return 0
    if arguments.config is None:
        raise UsageError("simulate: expected CONFIG or --replay RUN_DIR (see `mpidl simulate --help`)")
    _check_number("--replicas", arguments.replicas)
    summary = simulate(_config(arguments), arguments.replicas)
    _show(summary, arguments.json, results.summary)
    return INTERRUPTED if summary.get("interrupted") else 0


def _pack(arguments: argparse.Namespace) -> int:
    _check_number("--size", arguments.size)
    if not 0 < arguments.test_fraction < 1:
        raise UsageError(f"--test-fraction: expected float > 0 and < 1, found {arguments.test_fraction}")
    if arguments.seed < 0:
        raise UsageError(f"--seed: expected int >= 0, found {arguments.seed}")
    from mpidl.data.pack import pack

    packed = pack(
        arguments.folder, arguments.file, arguments.size, arguments.test, arguments.test_fraction, arguments.seed,
        force=arguments.force,
    )  # fmt: skip
    _show(packed, arguments.json, results.packed)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    if environment.world().size > 1:
        raise UsageError("plan: runs in one process, without mpirun")
    environment.limit_threads()
    if arguments.ranks is not None:
        _check_number("--ranks", arguments.ranks)
    config = _config(arguments)
    from mpidl.runs.plan import as_text, plan

    _show(plan(config, arguments.ranks), arguments.json, as_text)
    return 0


def _check_number(option: str, found: int | None) -> None:
    if found is None or not 1 <= found <= MOST:
        bound = f"<= {MOST}" if found is not None and found > MOST else ">= 1"
        raise UsageError(f"{option}: expected int {bound}, found {quoted(found)}")


def _doctor(arguments: argparse.Namespace) -> int:
    from mpidl import doctor

    return doctor.main()


def _show(result: Mapping[str, Any], as_json: bool, as_text: Callable[[Mapping[str, Any]], str]) -> None:
    from mpidl.report.recorder import encode

    lines = [encode(result).decode()] if as_json else map(printable, as_text(result).splitlines())
    print(*lines, sep="\n", flush=True)
