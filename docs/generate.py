"""Write what is said of the code elsewhere: `python docs/generate.py`.

That is the stub of the keywords of `mpidl.train`, for editors and type checkers, and what the manual shows of code, so
that its pages can be read as files. There it stands between a comment ``.. KIND: ARGUMENTS`` and a comment ``.. end``,
and is replaced. The kinds:

``keys: PATH [BASE]``
    Tables of a configuration's keys. PATH names a dataclass (``mpidl.data.Augmentation``), an item of a mapping
    (``mpidl.config.SECTIONS.run``), whose sections within it follow, or a whole registry (``mpidl.rules.RULES``), each
    class under a heading of its own. Keys of the class BASE are left out.
``names: PATH``
    The names in a mapping, with the first line of each docstring unless all have the same.
``keywords: PATH``
    The keywords of a function in a mapping, and the section or the key that each stands for.
``file: FILE [LINE]``
    A file, from a line on.
``function: FILE CLASS.METHOD``
    A method in a file.
``diff: OLD NEW``
    What changes from one file to the other.
``findings: FILE NAME``
    What `benchmarks/papers.py` has found about a contrast, from its file.
``verdicts: FILE``
    How much of each contrast it has reproduced.
``takeovers: PATH``
    For the algorithms in a mapping, with their defaults, whose ranks other processes can take over.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))
import docstrings  # noqa: E402

COMMAND = "python docs/generate.py"
WIDTH = 120
STUB = ROOT / "src/mpidl/runs/keyword_types.pyi"
STUB_BEGINS = f'''"""The types of the keywords of `mpidl.train`, written by `{COMMAND}`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from mpidl.config import DebugSection, DeviceSection, TablesSection
from mpidl.data import Augmentation, Normalisation
from mpidl.nn.groups import Group
from mpidl.rules import RateSchedule

class Keywords(TypedDict, total=False):
'''
#: The languages of files.
LANGUAGES = {".py": "python", ".toml": "toml", ".sbatch": "bash", ".txt": "none"}
#: Any model.
NETWORK = {"layer": [{"type": "dense", "units": 10}]}


def main() -> None:
    """Write the stub and all pages anew."""
    for file, after in [(STUB, stub()), *((page, generated(page.read_text())) for page in DOCS.glob("*.rst"))]:
        if not file.exists() or after != file.read_text():
            file.write_text(after)
            print(file.relative_to(ROOT))


def generated(page: str) -> str:
    """Return the text of a page with what its comments call for."""

    def block(found: re.Match[str]) -> str:
        lines = "\n".join(KINDS[found["kind"]](*found["arguments"].split())).strip("\n")
        return f".. {found['kind']}: {found['arguments']}\n\n{lines}\n\n.. end\n"

    return BLOCK.sub(block, page)


def stub() -> str:
    """Return the stub with the types of the keywords."""
    lines = [STUB_BEGINS]
    for keyword, place in resolve("mpidl.runs.keywords.KEYWORDS").items():
        section, _, key = place.partition(".")
        cls = resolve("mpidl.config.SECTIONS")[section]
        types = list(_types(get_type_hints(cls, include_extras=True)[key] if key else cls))
        # The name of a device stands for its section.
        types += ["str"] * (keyword == "device") + ["None"] * ("None" not in types)
        lines.append(f"    {keyword}: {' | '.join(types)}  # {place}\n")
    return "".join(lines)


def _types(annotation: Any) -> Iterator[str]:
    """Yield the types that a script may give for the annotation of a key."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _types(arguments[0])
        if any((each.extra or {}).get("path") for each in annotation.__metadata__):
            yield "Path"
    elif origin in (Union, UnionType):
        yield from (each for argument in arguments for each in _types(argument))
    elif origin is Literal:
        yield f"Literal[{', '.join(map(json.dumps, arguments))}]"
    elif origin is tuple:
        yield f"Sequence[{' | '.join(_types(arguments[0]))}]"
    elif origin is dict:
        yield f"Mapping[{', '.join(' | '.join(_types(each)) for each in arguments)}]"
    else:
        yield "None" if annotation is NoneType else annotation.__name__
        if is_dataclass(annotation):
            yield "Mapping[str, Any]"


def resolve(path: str) -> Any:
    """Return the object at a dotted path: a module, then attributes or a mapping's items."""
    first, *rest = path.split(".")
    found = import_module(first)
    for depth, name in enumerate(rest, start=2):
        if isinstance(found, Mapping):
            found = found[name]
        elif hasattr(found, name):
            found = getattr(found, name)
        else:
            found = import_module(".".join(path.split(".")[:depth]))
    return found


def keys(path: str, base: str = "") -> Iterable[str]:
    """Yield the lines of tables of keys."""
    found = resolve(path)
    leave_out = resolve(base) if base else None
    if isinstance(found, Mapping):
        return _registry(found, leave_out)
    parent, _, name = path.rpartition(".")
    return _section(name, found) if isinstance(resolve(parent), Mapping) else _table(found, leave_out)


def names(path: str) -> Iterator[str]:
    """Yield the lines of a list of names."""
    found: Mapping[str, Any] = resolve(path)
    texts = {name: (inspect.getdoc(value) or "").partition("\n")[0] for name, value in found.items()}
    if len(set(texts.values())) == 1:
        yield from textwrap.wrap(", ".join(f"``{name}``" for name in texts), WIDTH)
        return
    for name, text in texts.items():
        yield from (f"``{name}``", f"    {text}")


def keywords(path: str) -> Iterator[str]:
    """Yield the lines of a table of keywords."""
    yield from (".. list-table::", "   :header-rows: 1", "", "   * - Keyword", "     - Section or key")
    for name, place in resolve(path).items():
        yield from (f"   * - ``{name}``", f"     - ``{place if '.' in place else f'[{place}]'}``")


def file(path: str, line: str = "1") -> Iterator[str]:
    """Yield the lines of a block of code with a file."""
    lines = (ROOT / path).read_text().splitlines()[int(line) - 1 :]
    return _code(LANGUAGES[Path(path).suffix], lines)


def function(path: str, name: str) -> Iterator[str]:
    """Yield the lines of a block of code with a method."""
    source = (ROOT / path).read_text()
    body: Any = ast.parse(source)
    for part in name.split("."):
        body = next(node for node in body.body if getattr(node, "name", None) == part)
    code = ast.get_source_segment(source, body, padded=True) or ""
    return _code("python", textwrap.dedent(code).splitlines())


def diff(old: str, new: str) -> Iterator[str]:
    """Yield the lines of a block of code with the differences between two files."""
    before, after = ((ROOT / path).read_text().splitlines() for path in (old, new))
    return _code("diff", difflib.unified_diff(before, after, Path(old).name, Path(new).name, lineterm=""))


def findings(path: str, name: str) -> Iterator[str]:
    """Yield the lines of a table of findings."""
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 34 26 26 14", "")
    yield from _row("Contrast", "Paper", "Here", "Reproduced")
    for each in json.loads((ROOT / path).read_text())[name]["findings"]:
        yield from _row(each["what"], each["paper"], each["here"], "yes" if each["holds"] else "no")


def verdicts(path: str) -> Iterator[str]:
    """Yield the lines of a table of contrasts."""
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 40 16 44", "")
    yield from _row("Contrast", "Reproduced", "Not reproduced")
    for each in json.loads((ROOT / path).read_text()).values():
        missing = [finding["what"] for finding in each["findings"] if not finding["holds"]]
        count = len(each["findings"])
        yield from _row(each["title"], f"{count - len(missing)} of {count}", "; ".join(missing))


def takeovers(path: str) -> Iterator[str]:
    """Yield the lines of a table of algorithms."""
    from mpidl.config import from_dict
    from mpidl.job.takeover import fixed

    rows: dict[str, list[str]] = {"all ranks": [], "all but servers": [], "none": []}
    for name in resolve(path):
        causes = fixed(from_dict({"algorithm": {"name": name}, "data": {"source": "digits"}, "model": NETWORK}))
        rows["none" if causes.all else "all but servers" if causes.servers else "all ranks"].append(f"``{name}``")
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 20 80", "")
    yield from _row("Taken over", "``algorithm.name``")
    for title, names in rows.items():
        yield from _row(title, ", ".join(names))


KINDS = {each.__name__: each for each in (keys, names, keywords, file, function, diff, findings, verdicts, takeovers)}
BLOCK = re.compile(rf"^\.\. (?P<kind>{'|'.join(KINDS)}): (?P<arguments>.+)\n(?s:.*?)^\.\. end\n", re.MULTILINE)


def _code(language: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (f".. code-block:: {language}", "", *(f"   {line}".rstrip() for line in lines))


def _registry(registry: Mapping[str, type], leave_out: type | None) -> Iterator[str]:
    for cls in dict.fromkeys(registry.values()):
        title = ", ".join(f"``{name}``" for name, other in registry.items() if other is cls)
        yield from (title, "^" * len(title), "", docstrings.prose(cls), "")
        yield from _table(cls, leave_out)


def _section(name: str, cls: type) -> Iterator[str]:
    yield from _table(cls, None)
    for key, within, repeated in docstrings.subsections(cls):
        title = f"[[{name}.{key}]]" if repeated else f"[{name}.{key}]"
        yield from _table(within, None, f"``{title}``")


def _table(cls: type, leave_out: type | None, title: str = "") -> Iterator[str]:
    rows = docstrings.keys(cls, leave_out)
    if not rows:
        return
    yield from (f".. list-table:: {title}".rstrip(), "   :header-rows: 1", "   :widths: 18 22 14 46", "")
    for row in [("Key", "Value", "Default", "Description"), *map(_cells, rows)]:
        yield from _row(*row)
    yield ""


def _row(*cells: str) -> Iterator[str]:
    for number, cell in enumerate(cells):
        first = f"   {' ' if number else '*'} - "
        yield from textwrap.wrap(
            cell,
            WIDTH,
            initial_indent=first,
            subsequent_indent=" " * 7,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first.rstrip()]


def _cells(key: docstrings.Key) -> tuple[str, str, str, str]:
    names = ", ".join(f"``{name}``" for name in key.names)
    default = f"``{key.default}``" if key.default not in ("", "required") else key.default
    return names, key.values, default, key.description


if __name__ == "__main__":
    main()
