"""Errors that are told to a person in one line."""

from __future__ import annotations

#: Characters of a name or value that an error shows.
SHOWN = 60


class MpidlError(Exception):
    """Something that the run met and can't go on from; its text is one line for a person (exit code 1)."""

    exit_code = 1

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class UsageError(MpidlError):
    """What a user asked for can't be done as asked: which key or file, what was found, what would be right (exit 2)."""

    exit_code = 2


class RankError(MpidlError):
    """What one rank has met, and the coordinator tells.

    Attributes
    ----------
    rank : int
    """

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


def as_line(error: Exception) -> MpidlError:
    """Return any error as one that is told in a line; itself if it is one."""
    if isinstance(error, MpidlError):
        return error
    line: MpidlError
    if isinstance(error, MemoryError):
        line = UsageError(f"out of memory: {error or 'what the configuration asks for does not fit'}")
    else:
        line = MpidlError(f"{type(error).__name__}: {error} (MPIDL_DEBUG=1 shows where)")
    line.__cause__ = error
    return line


#: What a person can do about numbers that are NaN or infinite.
NOT_FINITE = "try a lower rate, or model.clip; with run.terminate_on_nan = false the run goes on"


def nearest(word: str, known: list[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the known word closest to `word`, else the list of known words."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"


def printable(text: str) -> str:
    """Return `text` as one line, with control characters escaped: what a file contains must not rule a terminal."""
    line = " ".join(part.strip() for part in text.splitlines())
    return line if line.isprintable() else "".join(_escaped(each) for each in line)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def quoted(value: object) -> str:
    """Return the text of a value that a user gave, for an error, shortened."""
    return shown(repr(value))


def kind_of(value: object) -> str:
    """Return the name of a value's type with its article: ``"a str"``, ``"an int"``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def raised(error: BaseException) -> str:
    """Return the text for something that has raised an error, without the something: its first line."""
    text = str(error).strip().partition("\n")[0]
    return f"raised {type(error).__name__}: {text} (MPIDL_DEBUG=1 shows its traceback)"


def shown(text: str, most: int = SHOWN) -> str:
    """Return a name or value for an error, shortened to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
