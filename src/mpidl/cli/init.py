"""Jobs to begin with: ``mpidl init`` writes a commented configuration, what it names, and a batch script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mpidl.errors import UsageError, nearest, quoted
from mpidl.paths import write_whole

JOBS = Path(__file__).parents[1] / "jobs"


class Example(NamedTuple):
    """A job of the package: what it trains, and its file without suffix."""

    about: str
    stem: str

    def write(self, name: str | None, directory: Path = Path()) -> list[Path]:
        """Write the job into a directory under a name, by default its own, and return its files.

        Raise UsageError if the name doesn't fit, or a file exists.
        """
        name = self.stem if name is None else name.removesuffix(".toml")
        suffixes = [suffix for suffix in (".toml", ".py") if (JOBS / self.stem).with_suffix(suffix).exists()]
        if not re.fullmatch(r"[^\W\d]\w*" if ".py" in suffixes else r"\w[\w.+-]*", name, re.ASCII):
            raise UsageError(f"{quoted(name)}: expected a name of letters, digits and _ for the job's files")
        if ".py" in suffixes and find_spec(name) is not None and not (directory / f"{name}.py").exists():
            raise UsageError(f"{name}: an installed module has this name, expected another for {name}.py")
        texts = {directory / f"{name}{suffix}": self._text(suffix, name) for suffix in suffixes}
        for path in texts:
            if path.exists():
                raise UsageError(f"{path}: exists already, expected another name: mpidl init NAME")
        for path, text in texts.items():
            try:
                write_whole(path, text.encode())
            except OSError as error:
                raise UsageError(f"{path}: can't be written ({error.strerror})") from None
        return list(texts)

    def _text(self, suffix: str, name: str) -> str:
        """Return the text of a file of the job, for another name in the current directory."""
        text = re.sub(r"\bjobs[/.](?=\w)", "", (JOBS / self.stem).with_suffix(suffix).read_text())
        return re.sub(rf"\b{self.stem}(?=[.:])", name, text)


#: By the names that ``--example`` takes.
EXAMPLES: Mapping[str, Example] = {
    "digits": Example("handwritten digits, which come with the package", "digits"),
    "fashion": Example("Fashion-MNIST, in four files that you download", "fashion_mnist"),
    "torch": Example("a PyTorch module on the digits", "torch_digits"),
    "jax": Example("a model in JAX on the digits", "jax_digits"),
    "clicks": Example("a recommendation model with a table of millions of rows", "clicks"),
    "sandblaster": Example("Fashion-MNIST by Sandblaster L-BFGS", "fashion_sandblaster"),
    "burgers": Example("a physics-informed network in PyTorch by L-BFGS", "torch_burgers"),
}


def example(name: str) -> Example:
    """Return an example by its name; raise UsageError if there is none."""
    if name not in EXAMPLES:
        raise UsageError(f"--example: {quoted(name)}, no such example{nearest(name, list(EXAMPLES))}")
    return EXAMPLES[name]


def listing() -> str:
    """Return a line for each example."""
    width = max(map(len, EXAMPLES))
    return "\n".join(f"{name:{width}}  {each.about}" for name, each in EXAMPLES.items())
