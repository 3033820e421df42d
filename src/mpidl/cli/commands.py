"""The commands, from their arguments to an exit code.

Each imports its modules when it runs, so that NumPy is imported only after threads are limited.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.launch import environment, marks, signals
from mpidl.launch.output import deliver, say
from mpidl.launch.script import DONE, JOB, NOTE, UserScript
from mpidl.launch.signals import STOPPED
from mpidl.paths import argument, regular, run_directory, shell_words
from mpidl.report import text
from mpidl.runs.process import exit_code, speaks

if TYPE_CHECKING:
    from mpidl.config import Config
    from mpidl.launch.batch import Work

#: The largest step of a checkpoint.
LARGEST = (1 << 63) - 1
#: What `mpidl plan` and `mpidl simulate` say of scripts.
NO_PLAN = "only configurations can be planned and simulated; `mpidl report RUN_DIR` shows what a script's run measured"
#: Limit of a command's numbers of ranks, replicas or pixels.
MOST = 1_000_000


def run_init(arguments: argparse.Namespace) -> int:
    from mpidl.cli import init

    if arguments.list:
        deliver(init.listing())
        return 0
    example = init.example(arguments.example)
    config, *others = example.write(arguments.name)
    deliver(f"{config}: {example.about}{''.join(f', with {other}' for other in others)}\n    mpidl train {config} -n 4")
    if arguments.scheduler is not None:
        deliver(f"    {_write_batch_script(config, arguments.submission(config, arguments.scheduler))}")
    return 0


def _write_batch_script(config: Path, arguments: argparse.Namespace) -> str:
    """Write the batch script of a configuration beside it, and return the command that submits it."""
    from mpidl.launch.batch import COMMANDS, batch

    script = batch(arguments, _work(arguments))
    file = config.with_name(script.path.name)
    file.write_text(script.script())
    script.path.parent.mkdir(exist_ok=True)  # for the job's log
    return shell_words([*COMMANDS[script.scheduler][0], str(file)])


def run_train(arguments: argparse.Namespace) -> int:
    started = environment.world()
    ranks = _ranks(arguments)
    _check_retries(arguments.retries, ranks > started.size)
    if ranks > started.size:
        return _launch_training(arguments, ranks)
    environment.prepare_libraries()
    from mpidl.runs.agreement import together

    def resolve() -> Config:
        config = configuration(arguments, started.size)
        topology = config.topology
        environment.prepare_mpi(topology.transport, config.data.keep == "distributed", topology.survive == "auto")
        return config

    config = together(resolve)
    from mpidl.runs.start import run

    summary = run(config, resume=arguments.resume)
    code = STOPPED if summary.get("interrupted") else 0
    if speaks(started.rank):
        marks.tell_done(code, started.size)
        if (shown := show_summary(summary, arguments.json, code)) != code:
            marks.tell_done(code := shown, started.size)
    return code


def _ranks(arguments: argparse.Namespace) -> int:
    """Return the requested number of ranks: those already started, or more."""
    started = environment.world().size
    ranks: int = started if arguments.ranks is None else arguments.ranks
    check_number("-n", ranks)
    if started > 1 and ranks != started:
        raise UsageError(f"-n {ranks}: there are {started} ranks already, leave -n out")
    return ranks


def _launch(
    ranks: int,
    words: Sequence[str],
    role: Callable[[int, Sequence[int]], str] = lambda rank, nodes: "",
    retries: int = 0,
    outlives: bool = False,
    fits: Callable[[int], bool] = lambda ranks: True,
) -> int:
    from mpidl.launch.mpiexec import launch
    from mpidl.report.progress import ProgressScreen

    if retries == 0:
        return launch(ranks, words, ProgressScreen(), role, outlives=outlives)
    from mpidl.runs.retries import Retries

    return launch(ranks, words, ProgressScreen(), role, Retries(retries, words).after, outlives, fits)


def _check_retries(retries: int, launches: bool) -> None:
    """Raise UsageError if a number of restarts is wrong, or if this process doesn't launch the ranks."""
    if not 0 <= retries <= MOST:
        raise UsageError(f"--retries: expected int from 0 to {MOST}, found {retries}")
    if retries and not launches:
        raise UsageError(f"--retries: {retries}, but --retries needs -n with at least 2 ranks")


def _launch_training(arguments: argparse.Namespace, ranks: int) -> int:
    config = configuration(arguments, ranks)
    config.topology.check_ranks(ranks, config.servers)
    passed = ["train"]
    if arguments.config is not None:
        passed.append(argument(arguments.config))
    passed += [f"--set={override}" for override in arguments.overrides]
    if arguments.resume is not None:
        passed.append(f"--resume={arguments.resume}")
    if arguments.json:
        passed.append("--json")
    topology, servers = config.topology, config.servers

    def role(rank: int, nodes: Sequence[int]) -> str:
        return topology.assign(nodes, servers).role(rank)

    def fits(ranks: int) -> bool:
        try:
            topology.check_ranks(ranks, servers)
        except UsageError:
            return False
        return ranks > 1

    return _launch(ranks, passed, role, arguments.retries, topology.survive == "auto", fits)


def configuration(arguments: argparse.Namespace, ranks: int = 1) -> Config:
    """Return the configuration of a command for a number of ranks, by default that of the run to resume."""
    given: Path | None = arguments.config
    resume: Path | None = getattr(arguments, "resume", None)
    of_run, command = False, arguments.words[0]
    plans = command in ("plan", "simulate")
    if given is not None and given.suffix == ".py":
        instead = NO_PLAN if plans else f"`mpidl run {given}` runs a script"
        raise UsageError(f"{given}: a Python script, expected a configuration; {instead}")
    if given is not None and plans and (given / "config.toml").exists():
        given = arguments.config = given / "config.toml"
        of_run = True
    elif given is not None and (given / "config.toml").exists():
        raise UsageError(f"{given}: the directory of a run, expected a configuration, or --resume {given}")
    if given is not None and given.name == str(given) and not given.suffix and not given.exists():
        raise UsageError(f"{given}: no such file; `mpidl init {given}` writes a job of that name")
    if given is not None and ranks > 1 and given.exists() and not (given.is_file() or given.is_dir()):
        raise UsageError(f"{given}: a pipe or a device, expected a file, which every rank can read")
    if given is None:
        if resume is None:
            raise UsageError(f"{command}: expected CONFIG or --resume RUN_DIR (see `mpidl {command} --help`)")
        if (resume / NOTE).exists():
            ranks_too = f" -n {ranks}" if ranks > 1 else ""
            raise UsageError(f"{resume}: trained by a script; `mpidl run --resume {resume}{ranks_too}` continues it")
        given, of_run = run_directory(resume) / "config.toml", True
    from mpidl.config import load

    config = load(given, arguments.overrides, of_run)
    if config.of_script:
        instead = NO_PLAN if plans else "the script itself continues it, with resume=True"
        raise UsageError(f"{given}: the model or the data are objects of a Python script; {instead}")
    return config


def run_script(arguments: argparse.Namespace) -> int:
    started = environment.world()
    ranks = _ranks(arguments)
    _check_retries(arguments.retries, ranks > started.size)
    try:
        script = UserScript.of(arguments.script, arguments.words_of_script, arguments.resume)
    except UsageError as error:
        if started.size > 1:
            # Maybe only this rank's host lacks the file.
            sys.excepthook(type(error), error, None)
        raise
    if ranks > started.size:
        os.environ[JOB] = script.job
        words = ["run", argument(script.path), "--", *script.arguments]
        return _launch(ranks, words, retries=arguments.retries, outlives=True)
    environment.prepare_libraries()
    if started.size == 1:
        # As in any script, a signal acts at once where no training handles it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signals.release()
    else:
        line = f"no training has begun for {signals.PATIENCE:.0f} s, in which to stop: stopping here"
        signals.stop_if_pending(lambda: say(line) if started.rank == 0 else None)
    # They are not for the commands that the script starts.
    os.environ.pop(JOB, None)
    done = Path(os.environ.pop(DONE)).absolute() if DONE in os.environ else None
    code = 0
    try:
        script.run()
    except SystemExit as end:
        code = exit_code(end)
    try:
        deliver("", end="")
    except MpidlError as error:
        say(str(error))
        code = code or 1
    if speaks(started.rank) and code in (0, STOPPED):
        if code == 0 and done is not None:
            FileIO(done, "a", opener=regular).close()
        marks.tell_done(code, started.size)
    return code


def run_evaluate(arguments: argparse.Namespace) -> int:
    environment.prepare_libraries()
    from mpidl.runs.evaluate import evaluate, trained

    run = trained(arguments.run_dir, arguments.newest)
    show(evaluate(run, step=_step(arguments)), arguments.json, text.evaluation)
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    environment.prepare_libraries()
    from mpidl.runs.evaluate import trained
    from mpidl.runs.load import export

    run = trained(arguments.run_dir, arguments.newest)
    exported = export(run, arguments.to, _step(arguments), arguments.output, arguments.force)
    show(exported, arguments.json, text.exported)
    return 0


def run_predict(arguments: argparse.Namespace) -> int:
    step, started, ranks = _step(arguments), environment.world(), _ranks(arguments)
    if ranks > started.size:
        return _launch_prediction(arguments, ranks)
    environment.prepare_libraries()
    from mpidl.runs.agreement import by_first_rank
    from mpidl.runs.evaluate import predict, trained

    run = by_first_rank(lambda: trained(arguments.run_dir, arguments.newest))
    if started.rank == 0:
        marks.tell(marks.READY)
    predicted = predict(run, arguments.data, arguments.output, step, arguments.force)
    if started.rank == 0:
        marks.tell_done(0, started.size)
        show(predicted, arguments.json, text.predicted)
    return 0


def _launch_prediction(arguments: argparse.Namespace, ranks: int) -> int:
    passed = ["predict", argument(arguments.run_dir), arguments.data, f"--output={arguments.output}"]
    passed += [] if arguments.step is None else [f"--step={arguments.step}"]
    passed += [f"--{option}" for option in ("newest", "force", "json") if getattr(arguments, option)]
    return _launch(ranks, passed)


def _step(arguments: argparse.Namespace) -> int | str | None:
    """Return the requested checkpoint: a step, "best", or None."""
    step: str | None = arguments.step
    if step in (None, "best"):
        return step
    if not step.isdecimal() or len(step) > len(str(LARGEST)):
        raise UsageError(f"--step: expected a number or 'best', found {quoted(step)}")
    return int(step)


def run_pack(arguments: argparse.Namespace) -> int:
    check_number("--size", arguments.size)
    if not 0 < arguments.test_fraction < 1:
        raise UsageError(f"--test-fraction: expected float > 0 and < 1, found {arguments.test_fraction}")
    if arguments.seed < 0:
        raise UsageError(f"--seed: expected int >= 0, found {arguments.seed}")
    from mpidl.data.pack import pack

    packed = pack(
        arguments.folder, arguments.file, arguments.size, arguments.test, arguments.test_fraction, arguments.seed,
        force=arguments.force,
    )  # fmt: skip
    show(packed, arguments.json, text.packed)
    return 0


def check_number(option: str, found: int | None) -> None:
    if found is None or not 1 <= found <= MOST:
        bound = f"<= {MOST}" if found is not None and found > MOST else ">= 1"
        raise UsageError(f"{option}: expected int {bound}, found {quoted(found)}")


def run_submit(arguments: argparse.Namespace) -> int:
    for option in ("nodes", "ranks_per_node", "cores_per_rank"):
        check_number(f"--{option.replace('_', '-')}", getattr(arguments, option))
    if arguments.gpus_per_node:
        check_number("--gpus-per-node", arguments.gpus_per_node)
    from mpidl.launch.batch import batch, submit

    script = batch(arguments, _work(arguments))
    if arguments.only_print:
        deliver(script.script(), end="", verbatim=True)
    else:
        deliver(submit(script))
    return 0


def _work(arguments: argparse.Namespace) -> Work:
    """Return what a batch job is to do: train a configuration, run a script, or continue a run of either."""
    from mpidl.launch.batch import Work

    given, resume = arguments.config, arguments.resume
    if resume is None and given is not None and given.is_dir():
        given, resume = None, given
    if (given is not None and given.suffix == ".py") or (resume is not None and (resume / NOTE).exists()):
        if arguments.overrides:
            raise UsageError(f"--set {arguments.overrides[0]}: a script takes arguments instead, after --")
        run = None if resume is None else resume.resolve()
        script = UserScript.of(given, arguments.words_of_script, run)
        return Work.running(script, None if run is None else Path(os.path.relpath(run)))
    if arguments.words_of_script:
        raise UsageError(f"{arguments.words_of_script[0]}: only a script takes arguments after --")
    arguments.config, arguments.resume = given, resume
    ranks = arguments.nodes * arguments.ranks_per_node
    config = configuration(arguments, ranks)
    config.topology.check_ranks(ranks, config.servers)
    if resume is not None:
        return Work.resuming(resume, given, arguments.overrides)
    return Work.training(given, config.run.name, config.run.directory.parent, arguments.overrides)


def run_doctor(arguments: argparse.Namespace) -> int:
    from mpidl import doctor

    started = environment.world()
    if arguments.compile:
        if started.size > 1:
            raise UsageError("--compile: runs in one process, without mpirun")
        environment.prepare_libraries()
        from mpidl.doctor.compiling import fill

        deliver(fill())
        return 0
    code = doctor.main(arguments.save)
    if started.rank == 0:
        marks.tell_done(code, started.size)
    return code


def show_summary(summary: Mapping[str, Any], as_json: bool, code: int) -> int:
    """Print a run's summary, and return the exit code: `code`, but not 0 if the summary can't be written."""
    try:
        show(summary, as_json, text.summary)
    except MpidlError as error:
        say(f"{error}; {summary['run_dir']}/summary.json has the summary")
        return code or 1
    return code


def show(result: Mapping[str, Any], as_json: bool, as_text: Callable[[Mapping[str, Any]], str]) -> None:
    from mpidl.report.recorder import as_json_line

    deliver(as_json_line(result) if as_json else as_text(result), needed=as_json)
