"""Batch scripts that train, continue from the last checkpoint when they run again, and are submitted to a scheduler."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from textwrap import indent

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.launch.script import DONE, JOB, UserScript
from mpidl.paths import argument, shell_word, shell_words, write_whole

#: Whether a run's summary says that it was trained to its end.
SUMMARISED = """grep -qs '"interrupted": *false' "$run/summary.json\""""


@dataclass(frozen=True)
class Work:
    """What a batch job does: ``mpidl COMMAND "${arguments[@]}"`` on its ranks.

    Attributes
    ----------
    command : str
        "train" or "run".
    name : str
        That of the script, the job, the log and a new run, but for characters that a scheduler or shell interprets.
    directory : Path
        Where they are.
    lines : sequence of str
        Lines of the shell that set ``arguments``, given ``$run``.
    done : str
        A test of the shell that is true when nothing is left to do.
    run : str or None
        What the job continues: a run's directory, or the name of the job that a script began in. By default a new one.
    """

    command: str
    name: str
    directory: Path
    lines: Sequence[str]
    done: str
    run: str | None = None

    @classmethod
    def training(cls, config: Path, name: str, directory: Path, overrides: Sequence[str]) -> Work:
        """Return the training of a configuration."""
        new = shell_words([argument(config), *_set(overrides)])
        lines = (
            'if [ -f "$run/config.toml" ]; then',
            '    arguments=(--resume "$run")',
            "else",
            f'    arguments=({new} --set "run.dir={argument(directory)}" --set "run.name=${{run##*/}}")',
            "fi",
        )
        return cls("train", name, directory, lines, SUMMARISED)

    @classmethod
    def resuming(cls, run: Path, config: Path | None, overrides: Sequence[str]) -> Work:
        """Return the continued training of a run, by its own configuration if none is given."""
        words = ([] if config is None else [argument(config)], _set(overrides))
        before, after = (f"{shell_words(each)} " if each else "" for each in words)
        arguments = f'{before}--resume "$run" {after}'.strip()
        return cls("train", run.name, run.parent, [f"arguments=({arguments})"], SUMMARISED, argument(run))

    @classmethod
    def running(cls, script: UserScript, resume: Path | None) -> Work:
        """Return the run of a script, in a job of its own, or in that to which the run `resume` belongs."""
        words = shell_words([argument(script.path), *(["--", *script.arguments] if script.arguments else ())])
        lines = (f"export {JOB}=$run", f"arguments=({words})")
        done = f'[ -f "${DONE}" ]'
        if resume is None:
            return cls("run", script.path.stem, Path("runs"), lines, done)
        return cls("run", resume.name, resume.parent, lines, done, script.job)


def _set(overrides: Sequence[str]) -> list[str]:
    return [f"--set={each}" for each in overrides]


#: Seconds before the end of a job's time at which its run saves and stops.
MARGIN = 120
#: Seconds before the end of a Flux job's time at which its ranks must have ended, so that its script can continue.
ENDING = 10
#: Limit of the times that a job queues itself again.
RESTARTS = 50
#: Limit of the times that a run starts again in one job.
RETRIES = 3
#: Schedulers, the commands that take a script, and its file name's suffix.
COMMANDS = {"slurm": (["sbatch"], "sbatch"), "pbs": (["qsub"], "pbs"), "flux": (["flux", "batch"], "flux")}
SCRIPTS = Path(__file__).parent / "scripts"


#: Start of a command once on each node or, under PBS, as often as that has ranks; and a test of what it returns: pbsdsh
#: returns 0, and writes a line for each command that doesn't.
ON_EACH_NODE = {
    "slurm": 'srun "${nodes[@]}" --overlap --no-kill --mpi=none --nodes="${count:=$SLURM_JOB_NUM_NODES}" '
    '--ntasks="$count" --ntasks-per-node=1',
    "pbs": "pbsdsh --",
    "flux": 'flux exec --noinput --rank="$(flux resource list --states=up --no-header --format="{ranks}")"',
}
UNPACKS = {"slurm": "(on_each_node unpack)", "pbs": "! (on_each_node unpack) | grep .", "flux": "(on_each_node unpack)"}
#: How the names of archives of environments end.
ARCHIVES = (".tar.gz", ".tar.zst", ".tar", ".sqfs", ".squashfs")
#: Number of the job, in the shell of its script.
NUMBER = {"slurm": "$SLURM_JOB_ID", "pbs": "${PBS_JOBID%%.*}", "flux": "$(flux getattr jobid)"}


@dataclass(frozen=True)
class BatchScript:
    """A batch script: the resources it asks for, and its work.

    Attributes
    ----------
    scheduler : str
        "slurm", "pbs" or "flux".
    work : Work
    time : int
        Seconds.
    mpi : str
        Start of the ranks under Slurm: by srun with "pmix" or "pmi2", or by "mpirun".
    memory : str or None
        Memory of each node, such as "64G" or "500M"; by default what the queue gives. Flux jobs have whole nodes.
    queue, account : str or None
        Queue in which the job waits, and account that is charged.
    setup : sequence of str
        First lines of the script.
    made : str
        The command that made the script.
    env : Path or None
        Archive of the ranks' environment, which the job unpacks on each node.
    """

    scheduler: str
    work: Work
    nodes: int
    ranks_per_node: int
    time: int
    mpi: str = "pmix"
    cores_per_rank: int = 1
    gpus_per_node: int = 0
    queue: str | None = None
    account: str | None = None
    setup: Sequence[str] = ()
    made: str = ""
    memory: str | None = None
    env: Path | None = None

    @property
    def path(self) -> Path:
        """Path of the script."""
        return self.work.directory / f"{self.name}.{COMMANDS[self.scheduler][1]}"

    @property
    def name(self) -> str:
        """Name of the script, the job, the log and a new run."""
        return re.sub(r"^-|[^\w.+-]", "_", self.work.name, flags=re.ASCII)

    def script(self) -> str:
        """Return the script.

        Raise UsageError if the work's directory, the queue or the account has characters that a shell or scheduler
        would interpret.
        """
        directory = "run.dir" if self.work.command == "train" else "RUN_DIR"
        for key, text, others in (
            (directory, str(self.work.directory), "./_+-"),
            ("--queue", self.queue, "./_+-:,@="),
            ("--account", self.account, "./_+-:,@="),
        ):
            if text is not None and not re.fullmatch(rf"[\w{re.escape(others)}]+", text, re.ASCII):
                raise UsageError(f"{key}: {quoted(text)}, expected letters, digits and {others} in a batch script")
        text = _template(self.scheduler).replace("@start\n", _template("mpirun" if self.mpi == "mpirun" else "srun"))
        if self.env is None:
            text = re.sub(r"(?m)^( *@unpack .*|@environment)\n", "", text)
        text = text.replace("@environment", _template("environment"))
        gpus = self.gpus_per_node or None
        # A rank of a script may fail before it has begun MPI, where others wait for it.
        kill = " --kill-on-bad-exit=1" if self.work.command == "run" else ""
        values = (
            vars(self)
            | vars(self.work)
            | {
                "name": self.name,
                "directory": argument(self.work.directory),
                "script": argument(self.path),
                "ranks": self.nodes * self.ranks_per_node,
                "cores": self.ranks_per_node * self.cores_per_rank,
                "clock": f"{self.time // 3600:02}:{self.time // 60 % 60:02}:{self.time % 60:02}",
                "limit": f"{self.time}s",
                "inner_limit": self.time - ENDING,
                "until": self.time - MARGIN,
                "margin": MARGIN,
                "restarts": RESTARTS,
                "retries": f" --retries {RETRIES}" if self.nodes * self.ranks_per_node > 1 else "",
                "attempts": RETRIES + 1,
                "gpus_per_node": gpus,
                "gpus": f"{':ngpus=' if self.scheduler == 'pbs' else ' --gpus-per-node='}{gpus}" if gpus else "",
                "pbs_memory": f":mem={self.memory}B".lower() if self.memory else "",
                "srun": f"--mpi={self.mpi} --cpus-per-task={self.cores_per_rank}{kill}",
                # The signal before the end is for the ranks. With mpirun, Slurm would send it to its daemons.
                "signal": f"{'B:' * (self.mpi == 'mpirun')}USR1@{MARGIN}",
                "number": NUMBER[self.scheduler],
                "archive": "" if self.env is None else shell_word(str(self.env)),
                "on_each_node": ON_EACH_NODE[self.scheduler],
                "unpack": UNPACKS[self.scheduler],
                "": "@",
            }
        )
        # An option without a value is left out.
        text = re.sub(r"(?m)^#.*@(\w+)\n", lambda match: "" if values[match[1]] is None else match[0], text)
        lines = {"setup": [*self.setup, ""], "begin": [*self._begin(), ""], "arguments": self.work.lines}
        for name, own in lines.items():
            text = _inserted(text, name, own)
        return re.sub(r"@(?:@|(\w+))", lambda match: str(values[match[1] or ""]), text)

    def _begin(self) -> list[str]:
        """Return the lines that say what is new, and what continues."""
        new = f"{argument(self.work.directory)}/{self.name}-{NUMBER[self.scheduler]}"
        # Slurm queues the same job again, others a new one.
        begun = new if self.scheduler == "slurm" else f"${{{JOB}:-{new}}}"
        run = begun if self.work.run is None else shell_word(self.work.run)
        done = [f"export {DONE}={new}.done"] if self.work.command == "run" and self.scheduler == "slurm" else []
        return [f"run={run}", *done]


def _template(name: str) -> str:
    return (SCRIPTS / f"{name}.sh").read_text()


def _inserted(text: str, name: str, lines: Sequence[str]) -> str:
    """Return a template with lines in the place of one that has a name only, indented as that is."""
    found = re.search(rf"^( *)@{name}$", text, re.MULTILINE)
    if found is None:
        return text
    own = indent("\n".join(lines), found[1]).replace("@", "@@")
    return text[: found.start()] + own + text[found.end() :]


def seconds_of(text: str) -> int:
    """Return a job's time in seconds, given as ``"1:30:00"``, ``"30:00"``, or ``"90"`` minutes, as Slurm takes it.

    Raise UsageError if the text is not a time, or too short a time for a run to save before its end.
    """
    found = re.fullmatch(r"(?:(?:(\d{1,4}):)?(\d{1,4}):(\d{2})|(\d{1,6}))", text, re.ASCII)
    if not found:
        raise UsageError(f"--time: expected hours:minutes:seconds such as 1:00:00, found {quoted(text)}")
    hours, minutes, seconds, alone = (int(each or 0) for each in found.groups())
    total = 3600 * hours + 60 * (minutes + alone) + seconds
    if total < 2 * MARGIN:
        raise UsageError(
            f"--time: {quoted(text)} is {total} s, expected at least {2 * MARGIN}: a run needs time to save"
        )
    return total


#: Ways to start the ranks under Slurm.
STARTERS = ("pmix", "pmi2", "mpirun")


def batch(arguments: argparse.Namespace, work: Work) -> BatchScript:
    """Return the batch script for the arguments of ``mpidl submit`` and its work.

    Raise UsageError if an argument is wrong, or there is no scheduler.
    """
    found = [scheduler for scheduler, (command, _) in COMMANDS.items() if shutil.which(command[0])]
    scheduler = arguments.scheduler or (found[0] if found else "slurm")
    if scheduler not in COMMANDS:
        raise UsageError(f"--scheduler: {quoted(scheduler)}, expected {', '.join(COMMANDS)}")
    if scheduler not in found and not arguments.only_print:
        raise UsageError(f"--scheduler: no command {COMMANDS[scheduler][0][0]} on PATH; --print shows the script")
    mpi = arguments.mpi or ("pmi2" if _has("mpich") or _has("impi-rt") else "pmix")
    if mpi not in STARTERS:
        raise UsageError(f"--mpi: {quoted(mpi)}, expected {', '.join(STARTERS)}")
    memory = arguments.memory_per_node
    if memory is not None and not re.fullmatch(r"[1-9]\d{0,8}[KMGT]", memory, re.ASCII):
        raise UsageError(f"--memory-per-node: {quoted(memory)}, expected a number and K, M, G or T, such as 64G")
    env = None if arguments.env is None else _archive(arguments.env)
    own = [f"export PATH={shell_word(str(Path(sys.executable).parent))}:$PATH"]
    setup = arguments.setup or ([] if env else own)
    return BatchScript(
        scheduler, work, arguments.nodes, arguments.ranks_per_node, seconds_of(arguments.time), mpi,
        arguments.cores_per_rank, arguments.gpus_per_node, arguments.queue, arguments.account, setup,
        shell_words(["mpidl", *arguments.words]), memory, env,
    )  # fmt: skip


def _archive(path: Path) -> Path:
    """Return the absolute path of an environment's archive; raise UsageError if it isn't one, or isn't there."""
    if not path.name.endswith(ARCHIVES):
        raise UsageError(f"--env: {quoted(str(path))}, expected an archive: {', '.join(ARCHIVES)}")
    if not path.is_file():
        raise UsageError(f"--env: {quoted(str(path))}: no such file, expected an archive of conda-pack or venv-pack")
    return path.absolute()


def _has(package: str) -> bool:
    """Return whether a package with an MPI library is installed beside this one."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def submit(script: BatchScript) -> str:
    """Write a batch script, submit it, and return the scheduler's answer.

    Raise MpidlError if the script can't be written, or the scheduler rejects it.
    """
    text = script.script()
    try:
        script.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(script.path, text.encode())
    except OSError as error:
        raise MpidlError(f"{script.path}: {error.strerror}") from None
    command = [*COMMANDS[script.scheduler][0], argument(script.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MpidlError(f"{shlex.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return f"{done.stdout.strip()} ({script.path})"
