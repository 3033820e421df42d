"""A user's Python script as a job: its run on a rank, and the notes by which it finds the runs that it has begun."""

from __future__ import annotations

import os
import runpy
import shlex
import sys
import uuid
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpidl.errors import MpidlError, UsageError, shown
from mpidl.launch import environment, marks
from mpidl.paths import numbered, read_text

#: Environment variable with the name of the job that a script belongs to: the same when the job starts again.
JOB = "MPIDL_RUN"
#: Environment variable with the name of a file to make when a script has ended well.
DONE = "MPIDL_DONE"
#: Name of the note in the directory of each run that a script has begun.
NOTE = "script.json"


@dataclass(frozen=True)
class Note:
    """What a run notes of its script: how it was started, and the number of the training among those of its name."""

    script: str
    arguments: list[str]
    directory: str
    job: str
    name: str
    training: int


class UserScript:
    """A script that ``mpidl run`` runs.

    Parameters
    ----------
    path : Path
    arguments : sequence of str
    job : str
        Name of the job. A job that starts again continues the runs that it has begun.
    """

    def __init__(self, path: Path, arguments: Sequence[str], job: str) -> None:
        self.path, self.arguments, self.job = path, list(arguments), job
        # The script may change the working directory.
        self._directory, self._place = os.getcwd(), str(path.resolve())
        self._trainings: Counter[Path] = Counter()
        self._present = ("", 0)

    @classmethod
    def of(cls, target: Path | None, arguments: Sequence[str], resume: Path | None) -> UserScript:
        """Return the script `target`; by default, that of the run `resume`, in whose working directory it goes on.

        Without `arguments`, it gets those of that run. `target` may be that run's directory, too. Raise UsageError if
        the script can't be read or is not Python, or if no script has trained that run.
        """
        if resume is None and target is not None and (target / NOTE).exists():
            target, resume = None, target
        if resume is None:
            if target is None:
                raise UsageError("run: expected SCRIPT or --resume RUN_DIR (see `mpidl run --help`)")
            script = cls(target, arguments, os.environ.get(JOB) or uuid.uuid4().hex)
        else:
            note = _read(resume)
            if note is None:
                raise UsageError(f"{resume}: not a run that `mpidl run` or `mpidl submit` has trained by a script")
            if target is None:
                _enter(note.directory)
                target, arguments = Path(note.script), arguments or note.arguments
            script = cls(target, arguments, note.job)
        script._check()
        return script

    def _check(self) -> None:
        if self.path.suffix == ".toml":
            raise UsageError(f"{self.path}: a configuration; `mpidl train {self.path}` trains it")
        try:
            with warnings.catch_warnings(action="ignore"):
                compile(self.path.read_bytes(), str(self.path), "exec", dont_inherit=True)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}") from None
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise UsageError(f"{self.path}{line}: not Python ({shown(what)})") from None

    def run(self) -> None:
        """Run the script in this process as ``python SCRIPT`` does; raise SystemExit as it does.

        An exception is reported by ``sys.excepthook`` with the script's own traceback, unless this process is alone and
        the command reports it in a line: then raise it.
        """
        global _current
        path = self._place
        os.environ.setdefault(marks.COMMAND, shlex.join(["mpidl", *sys.argv[1:]]))
        sys.argv = [path, *self.arguments]
        sys.path.insert(0, os.path.dirname(path))
        _current = self
        try:
            runpy.run_path(path, run_name="__main__")
        except BaseException as error:
            alone = environment.world().size == 1
            if isinstance(error, SystemExit) or (alone and isinstance(error, MpidlError | KeyboardInterrupt)):
                raise
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != path:
                trace = trace.tb_next
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            raise SystemExit(1) from None
        finally:
            _current = None

    def begin(self, run: Path) -> Path | None:
        """Begin a training with the directory ``runs/NAME``: return that of the run that it has begun before, if any.

        Of several trainings of one name, each has its own run.
        """
        self._trainings[run] += 1
        self._present = (run.name, self._trainings[run])
        return next((path for path in numbered(run).values() if self._owns(path)), None)

    def _owns(self, run: Path) -> bool:
        note = _read(run)
        return note is not None and (note.job, note.name, note.training) == (self.job, *self._present)

    def note(self) -> bytes:
        """Return the note for the run of the present training, as JSON."""
        import msgspec

        note = Note(self._place, self.arguments, self._directory, self.job, *self._present)
        return msgspec.json.format(msgspec.json.encode(note), indent=2) + b"\n"


def _read(run: Path) -> Note | None:
    """Return the note in a run's directory, if there is one; raise UsageError if it can't be read."""
    import msgspec

    from mpidl.schema import MALFORMED

    try:
        return msgspec.json.decode(read_text(run / NOTE, of_run=True), type=Note)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, *MALFORMED) as error:
        raise UsageError(f"{run / NOTE}: can't be read ({getattr(error, 'strerror', None) or error})") from None


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}; expected SCRIPT too, to continue elsewhere") from None


#: The script that this process runs.
_current: UserScript | None = None


def current() -> UserScript | None:
    """Return the script that this process runs by ``mpidl run``; None if it does something else."""
    return _current
