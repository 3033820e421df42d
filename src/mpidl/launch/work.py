"""What a batch job does: train a configuration, run a script, or continue either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpidl.launch.script import DONE, JOB, UserScript
from mpidl.paths import argument, shell_words

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
