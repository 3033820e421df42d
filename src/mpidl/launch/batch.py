"""Batch scripts, which train, and go on from the last checkpoint when they run again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpidl.errors import UsageError, quoted

__all__ = ["COMMANDS", "Batch", "seconds_of"]

#: Seconds before the end of a job's time at which its run is asked to save and stop.
MARGIN = 120
#: Seconds before the end of a Flux job's time at which its ranks have to end, so that its script can go on.
ENDING = 10
#: The most times that a job queues itself again.
RESTARTS = 50
#: Schedulers, the commands that take a script, and the ending of its name.
COMMANDS = {"slurm": (["sbatch"], "sbatch"), "pbs": (["qsub"], "pbs"), "flux": (["flux", "batch"], "flux")}
#: What begins an option's line.
OPTION = {"slurm": "#SBATCH", "pbs": "#PBS", "flux": "#flux:"}
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Batch:
    """What a batch script asks for and does.

    Attributes
    ----------
    scheduler : str
        "slurm", "pbs" or "flux".
    config : Path
        The configuration.
    name : str
        The run's name, to which its directory adds the job's number.
    directory : Path
        Where runs' directories, the script and the log are.
    nodes, ranks_per_node, cores_per_rank, gpus_per_node : int
    time : int
        Seconds.
    mpi : str
        What starts the ranks under Slurm: "pmix" or "pmi2", by srun, or "mpirun".
    queue, account : str or None
        Where the job waits, and who pays.
    overrides : sequence of str
        ``section.key=value`` each.
    setup : sequence of str
        Lines of the script that come first.
    made : str
        The command that makes the script.
    """

    scheduler: str
    config: Path
    name: str
    directory: Path
    nodes: int
    ranks_per_node: int
    time: int
    mpi: str = "pmix"
    cores_per_rank: int = 1
    gpus_per_node: int = 0
    queue: str | None = None
    account: str | None = None
    overrides: Sequence[str] = ()
    setup: Sequence[str] = ()
    made: str = ""

    @property
    def path(self) -> Path:
        """Where the script belongs."""
        return self.directory / f"{self.name}.{COMMANDS[self.scheduler][1]}"

    def script(self) -> str:
        """Return the script.

        Raises
        ------
        UsageError
            A shell would not take the run's name or directory as they are.
        """
        for key, text in (("run.name", self.name), ("run.dir", str(self.directory))):
            if not re.fullmatch(r"[\w./+-]+", text, re.ASCII):
                raise UsageError(f"{key}: {quoted(text)}, expected letters, digits and ./_+- in a batch script")
        text = (SCRIPTS / f"{self.scheduler}.sh").read_text()
        lines = {"options": [f"{OPTION[self.scheduler]} {each}" for each in self._options()], "setup": self.setup}
        for name, own in lines.items():
            text = text.replace(f"@{name}\n", "".join(f"{line}\n" for line in [*own, ""]).replace("@", "@@"))
        values = {
            "made": self.made,
            "name": self.name,
            "directory": str(self.directory),
            "script": str(self.path),
            "nodes": str(self.nodes),
            "ranks": str(self.nodes * self.ranks_per_node),
            "ranks_per_node": str(self.ranks_per_node),
            "cores_per_rank": str(self.cores_per_rank),
            "cores": str(self.ranks_per_node * self.cores_per_rank),
            "clock": f"{self.time // 3600:02}:{self.time // 60 % 60:02}:{self.time % 60:02}",
            "limit": f"{self.time}s",
            "inner_limit": f"{self.time - ENDING}s",
            "until": str(self.time - MARGIN),
            "margin": str(MARGIN),
            "restarts": str(RESTARTS),
            "gpus": self._gpus(),
            "train": "\n".join(self._train()),
            "arguments": shlex.join([str(self.config), *(f"--set={each}" for each in self.overrides)]),
            "": "@",
        }
        return re.sub(r"@(?:@|(\w+))", lambda match: values[match[1] or ""], text)

    def _options(self) -> list[str]:
        """Return the scheduler's options that not every script has."""
        if self.scheduler == "pbs":
            given = {"-q ": self.queue, "-A ": self.account}
        elif self.scheduler == "flux":
            given = {"--queue=": self.queue, "--bank=": self.account}
        else:
            # The signal before the end is for the ranks. Beside mpirun that would be its daemons, which it would kill.
            signal = f"{'B:' * (self.mpi == 'mpirun')}USR1@{MARGIN}"
            gpus = str(self.gpus_per_node) if self.gpus_per_node else None
            given = {
                "--signal=": signal, "--gpus-per-node=": gpus, "--partition=": self.queue, "--account=": self.account,
            }  # fmt: skip
        return [f"{option}{value}" for option, value in given.items() if value is not None]

    def _gpus(self) -> str:
        """Return what follows a node's other resources."""
        if not self.gpus_per_node:
            return ""
        if self.scheduler == "pbs":
            return f":ngpus={self.gpus_per_node}"
        return f" --gpus-per-node={self.gpus_per_node}"

    def _train(self) -> list[str]:
        """Return the lines that train under Slurm, and keep the exit code."""
        arguments = '"${arguments[@]}"'
        if self.mpi != "mpirun":
            return [f"srun --mpi={self.mpi} --cpus-per-task={self.cores_per_rank} mpidl train {arguments}", "code=$?"]
        return [
            f"mpidl train -n {self.nodes * self.ranks_per_node} {arguments} &",
            "trap 'kill -USR1 $!' USR1",
            "wait $!",
            "code=$?",
            "# A signal ends the waiting, and not the run.",
            "while kill -0 $! 2> /dev/null; do wait $!; code=$?; done",
        ]


def seconds_of(text: str) -> int:
    """Return the seconds of a job's time: ``"1:30:00"``, ``"30:00"``, or ``"90"`` minutes, as Slurm takes them.

    Raises
    ------
    UsageError
        It is no such time, or too short for a run to save before its end.
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
