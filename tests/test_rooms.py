"""The rooms of the package: who imports whom, and who calls one-sided MPI; budgets; and what tests of ranks look like.

As a script, lower the budgets to what there is today: ``make budgets``.
"""

import ast
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from inspect import get_annotations
from pathlib import Path

import pytest
import tomli_w

from mpidl import schema
from mpidl.algorithms import ALGORITHMS
from mpidl.config import SECTIONS
from mpidl.config.cluster import Death, SlowReplica
from mpidl.data import SOURCES, Augmentation, Normalisation
from mpidl.nn import LAYERS
from mpidl.nn.groups import Group
from mpidl.rules import RULES

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SOURCE / "mpidl"

#: From the bottom up: a room imports only rooms before it, and files of its own.
ROOMS = (
    *("errors", "version", "jit", "paths", "extras", "schema", "device", "functions"),
    *("topology", "launch"),
    *("parameters", "rules", "wire", "tables", "data", "metrics", "loggers", "nn", "partition", "torch", "jax"),
    *("shards", "storage"),
    "algorithms",
    *("transport", "rma"),
    "engines",
    *(
        "config",
        "history",
        "job",
        "report",
        "roles",
        "relays",
        "survival",
        "mirrors",
        "sparse",
        "tracing",
        "page",
        "runs",
        "loops",
        "doctor",
    ),
    "top",
    *("cli", "__main__", "__init__"),
)
#: Rooms that work without MPI.
PURE = ROOMS[: ROOMS.index("transport") + 1]
#: Calls of one-sided MPI, and of what stands for it in `rma`.
WINDOW_CALLS = {"put", "get", "flush", "sync", "local", "fetch_and_op", "Put", "Get", "Flush", "Accumulate"}

#: The most there may be of each: the figures of the day on which they were written. `make budgets` writes smaller ones,
#: never larger ones: what needs more room takes something out, or its issue says how much it may add.
BUDGETS = Path(__file__).with_name("budgets.toml")
#: The words of optional features, which few files may name.
FEATURES = {
    "relays": r"relay",
    "wait-free back-propagation": r"wait_?free|wait-free|leaves? early|left early|report_final|GradientObserver",
    "averages of weights": r"\bema\b|import AVERAGE\b",
    "mirrors": r"\bmirrors?\b",
    "rates that fall on a plateau": r"[Pp]lateau",
    "extra states of modules": r"extra_state",
    "loops of one's own": r"mpidl\.loops|InLoop|OwnLoop|Enclosed",
    "timelines": r"\btracing\b|\btraced|run\.trace\b",
}


def module(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# The jobs are a link to their folder, and copies of them in a source archive.
FILES = {module(path): path for path in sorted(PACKAGE.rglob("*.py")) if PACKAGE / "jobs" not in path.parents}


def room(name):
    """Return the room of a module: the name below the package, a file at the root being a room of its own."""
    return name.split(".")[1] if "." in name else "__init__"


@pytest.fixture(scope="module")
def trees():
    """The syntax tree of each module."""
    return {name: ast.parse(path.read_text()) for name, path in FILES.items()}


@pytest.fixture(scope="module")
def graph(trees):
    """The modules that each module imports."""
    return {name: imports(name, tree) for name, tree in trees.items()}


def imports(name, tree):
    """Return the modules that a module imports, wherever in it, also for type checkers only."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in FILES else node.module for each in submodules}
    return {each for each in found if each in FILES and each != name}


def test_every_file_has_a_room():
    assert {room(name) for name in FILES} == set(ROOMS)
    loose = [path.name for path in PACKAGE.glob("*.py")]
    assert len(loose) <= 10, loose


def test_no_room_imports_a_room_above(graph):
    height = {each: number for number, each in enumerate(ROOMS)}
    up = [(name, each) for name in FILES for each in graph[name] if height[room(each)] > height[room(name)]]
    assert not up


def test_no_circle_of_imports(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_rooms_without_mpi(trees):
    def names(node):
        if isinstance(node, ast.Import):
            return {alias.name.partition(".")[0] for alias in node.names}
        return {(node.module or "").partition(".")[0]} if isinstance(node, ast.ImportFrom) else set()

    found = {name for name, tree in trees.items() for node in ast.walk(tree) if "mpi4py" in names(node)}
    pure = {name for name in found if room(name) in PURE or name.startswith("mpidl.engines.virtual")}
    assert not pure
    assert any(room(name) == "rma" for name in found)


def window_calls(tree):
    """Yield the calls on something that is called a window."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WINDOW_CALLS:
            owner = ast.unparse(node.func.value)
            if re.search(r"window|\bwin\b|\bMPI\.Win\b", owner, re.IGNORECASE):
                yield f"{owner}.{node.func.attr}"


def test_only_rma_touches_windows(trees):
    outside = {name: tree for name, tree in trees.items() if room(name) != "rma"}
    calls = {name: list(window_calls(tree)) for name, tree in outside.items()}
    assert not {name: found for name, found in calls.items() if found}
    assert any(list(window_calls(trees[name])) for name in FILES if room(name) == "rma")
    for name, tree in outside.items():
        attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {each for each in attributes if each.startswith("MPI.Win")}, name
        assert "mpidl.rma.windows.Window" not in {
            f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }, name


#: Ways of reading a file other than by `mpidl.paths`; and where a file of a run is read so after a check.
READS = re.compile(r"h5py\.File\([^)]*?(?:, \"(\w+)\"|\))|\.read_bytes\(|\.read_text\(|json\.load\(|\.open\(\"r")
CHECKED = {"mpidl.storage.own_values"}


def test_files_of_runs_are_opened_in_one_place():
    rooms = ("storage", "config", "job", "report", "page", "roles", "relays", "survival", "runs")
    texts = {name: path.read_text() for name, path in FILES.items() if room(name) in rooms}
    found = {name for name, text in texts.items() if any(each[1] in (None, "r") for each in READS.finditer(text))}
    assert found == CHECKED


def keys_of_a_configuration():
    """Return the keys, each with the class that introduces it: what a class inherits is no key of its own."""
    named = [*ALGORITHMS.values(), *RULES.values(), *SOURCES.values(), *LAYERS.values()]
    nested = [Augmentation, Normalisation, Group, SlowReplica, Death]
    naming = {(None, key) for key in ("algorithm.name", "server.rule", "data.source", "model.layer.type")}
    return naming | {
        (next(base for base in reversed(cls.__mro__) if key in get_annotations(base)), key)
        for cls in [*SECTIONS.values(), *nested, *named]
        for key in schema.keys(cls)
    }


#: Members with an underscore that belong to an interface.
INTERFACES = {"_repr_html_", "_replace", "_asdict", "_fields", "_make", "_exit"}


def private_members(tree):
    """Yield the private members of others that a test reads, imports or replaces."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        for name in (name.rpartition(".")[2] for name in names):
            if name.startswith("_") and not name.startswith("__") and name not in INTERFACES:
                yield name


def private_members_in_tests():
    """Return the places where tests use private members: they tear messages apart, and count what nothing shows."""
    trees = {path: ast.parse(path.read_text()) for path in Path(__file__).parent.rglob("*.py")}
    return [f"{path.name}: {name}" for path, tree in trees.items() for name in private_members(tree)]


def own_statements(function):
    """Yield the statements and expressions of a function, without those of functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node
            yield from own_statements(node)


def test_no_test_of_ranks_returns_early():
    """It would count as passed: a test that doesn't fit the world is skipped."""
    found, tests = [], 0
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        text = path.read_text()
        if "mark.mpi" not in text:
            continue
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        for function in functions:
            if function.name.startswith("test"):
                tests += 1
                if any(isinstance(node, ast.Return) for node in own_statements(function)):
                    found.append(f"{path.name}:{function.name}")
    assert tests > 100
    assert not found


def docstrings(tree):
    """Yield the docstrings of a module, its classes and its functions, as nodes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            yield node.body[0]


def lines_of_code(path, tree):
    """Count the lines of a file that are neither blank, comments nor docstrings."""
    described = {number for node in docstrings(tree) for number in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(path.read_text().splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in described for number, line in lines)


def members(node):
    """Return the public members that a class defines: methods, properties, attributes, also those set in `__init__`."""
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    names = {each.name for each in methods}
    names |= {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
    for each in (each for method in methods if method.name == "__init__" for each in ast.walk(method)):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            names.add(each.attr)
    return {name for name in names if not name.startswith("_")}


def figures(trees):
    """Return today's figures, in groups like the budgets; a figure is a number or a list of what counts."""
    texts = {name: path.read_text() for name, path in FILES.items()}
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    return {
        "package": {
            "lines": sum(len(text.splitlines()) for text in texts.values()),
            "lines of code": sum(lines_of_code(path, trees[name]) for name, path in FILES.items()),
            "files": len(FILES),
            "keys of a configuration": len(keys_of_a_configuration()),
            "exported names": sum(isinstance(node, ast.ImportFrom | ast.AnnAssign) for node in stub.body),
            "private members in tests": private_members_in_tests(),
        },
        "files that name": {
            feature: sorted(name for name, text in texts.items() if re.search(pattern, text, re.IGNORECASE))
            for feature, pattern in FEATURES.items()
        },
        "members": {
            f"{name}.{node.name}": len(members(node))
            for name, tree in trees.items()
            for node in ast.walk(tree)
            # The rows of a table of keywords are no members.
            if isinstance(node, ast.ClassDef) and "TypedDict" not in map(ast.unparse, node.bases)
        },
    }


def count(figure):
    return figure if isinstance(figure, int) else len(figure)


def exceeded(found, budgets):
    """Yield a line for each figure above its budget. A class without a budget has that of all others."""
    for group, each in found.items():
        for name, figure in each.items():
            most = budgets[group].get(name, budgets[group].get("others", 0))
            if count(figure) > most:
                yield f"{group}: {name}: {count(figure)}, expected at most {most}: {figure}"


def lowered(found, budgets):
    """Return the budgets, each at most today's figure; a class has one of its own as long as it is above all others."""
    least = {
        group: {name: min(most, count(found[group].get(name, 0))) for name, most in each.items() if name != "others"}
        for group, each in budgets.items()
    }
    others = budgets["members"]["others"]
    others = min(others, max(figure for name, figure in found["members"].items() if name not in budgets["members"]))
    least["members"] = {name: most for name, most in least["members"].items() if most > others}
    return {**least, "members": {"others": others, **least["members"]}}


def test_budgets(trees):
    over = list(exceeded(figures(trees), tomllib.loads(BUDGETS.read_text())))
    assert not over, "\n".join(over)


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_named(feature):
    assert any(re.search(FEATURES[feature], path.read_text(), re.IGNORECASE) for path in FILES.values())


def test_budgets_only_fall():
    found = {
        "package": {"lines": 90, "files": 3, "keys": ["a", "b"]},
        "members": {"Small": 12, "Grown": 26, "Shrunk": 22, "Near": 14},
    }
    budgets = {
        "package": {"lines": 100, "files": 2, "keys": 2},
        "members": {"others": 20, "Grown": 25, "Shrunk": 24, "Near": 30, "Gone": 33},
    }
    over = ["package: files: 3, expected at most 2: 3", "members: Grown: 26, expected at most 25: 26"]
    assert list(exceeded(found, budgets)) == over
    least = lowered(found, budgets)
    assert least == {
        "package": {"lines": 90, "files": 2, "keys": 2},
        "members": {"others": 12, "Grown": 25, "Shrunk": 22, "Near": 14},
    }
    assert list(exceeded(found, least)) == over
    assert lowered(found, least) == least


def test_members_of_a_class():
    text = """
class Some:
    kind: str
    def __init__(self):
        self.size, self._hidden = 1, 2
        if self.size:
            self.items: list = []
        other.name = self.read.size
    def method(self):
        self.later = 1
"""
    assert members(ast.parse(text).body[0]) == {"kind", "size", "items", "method"}


def test_only_what_puts_a_job_together_knows_of_survival(graph):
    knowing = {
        name for name in FILES if room(name) != "survival" and any(room(each) == "survival" for each in graph[name])
    }
    assert {room(name) for name in knowing} == {"runs"}
    assert len(knowing) <= 3, sorted(knowing)


def test_servers_workers_and_transports_know_no_tables(graph):
    core = {"algorithms", "rules", "wire", "shards", "transport", "rma", "engines", "roles", "relays"}
    assert not [
        name for name in FILES if room(name) in core and {room(each) for each in graph[name]} & {"tables", "sparse"}
    ]


def test_algorithms_rules_networks_and_data_name_no_deaths():
    rooms, words = ("algorithms", "rules", "nn", "data", "wire", "parameters"), r"take_?over|taken over|estate|settle"
    texts = {name: path.read_text() for name, path in FILES.items() if room(name) in rooms}
    assert not [name for name, text in texts.items() if re.search(words, text, re.IGNORECASE)]


def test_what_is_inherited_is_described_once(trees):
    """A docstring that only points to another one hides what Sphinx and editors show."""
    texts = ((name, node.value.value) for name, tree in trees.items() for node in docstrings(tree))
    found = [(name, text.strip()) for name, text in texts if re.match(r"See (also )?`", text.strip())]
    assert not found


if __name__ == "__main__":
    today = figures({name: ast.parse(path.read_text()) for name, path in FILES.items()})
    BUDGETS.write_text(tomli_w.dumps(lowered(today, tomllib.loads(BUDGETS.read_text()))))
