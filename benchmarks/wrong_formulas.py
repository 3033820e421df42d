"""Wrong formulas, put into algorithms, policies, rules and wire formats one after another: the tests must notice each.

    make formulas
    python benchmarks/wrong_formulas.py [--only TEXT]

Changes one expression at a time in a copy of the sources, and runs the tests of that expression's room on it. Prints
the formulas that no test has noticed; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from formulas import FORMULAS
from formulas.wrong import Wrong
from harness import parse

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src", "mpidl")


#: Tests of what ranks note of themselves in memory that they share, and of the processes that die there.
OF_NOTES = ("tests/rma/test_claims.py", "tests/engines/test_connection.py", "tests/job/test_servers_taken_over.py")
LEFT_BEHIND = "tests/survival/test_takings.py"
TAKEN_OVER = "tests/roles/test_shards_taken_over.py"
#: Files with their tests in the folder of another room.
ELSEWHERE = {
    "job/notes.py": "tests/data/test_labels.py",
    "loops/module.py": "tests/with_torch/test_loops_of_modules.py",
    "storage/deltas.py": "tests/sparse/test_deltas_of_checkpoints.py",
}


def main() -> None:
    """Try all formulas; print those that no test notices."""
    parser = argparse.ArgumentParser(description="Wrong formulas that the tests must notice.")
    parser.add_argument("--only", default="", help="files whose name has this in it")
    options = parse(parser, only="partition/timeline")
    chosen = [formula for formula in FORMULAS if options.only in formula.file]
    with tempfile.TemporaryDirectory(prefix="wrong-formulas-") as directory:
        tree = Path(directory)
        for part in ("src", "tests", "jobs"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        unnoticed = [formula for formula in chosen if not noticed(formula, tree)]
    for formula in unnoticed:
        print(f"{formula.file}: {formula.wrong.strip()!r} in the place of {formula.right.strip()!r}")
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} wrong formulas are noticed")
    sys.exit(bool(unnoticed))


def noticed(formula: Wrong, tree: Path) -> bool:
    """Tell whether the tests of a formula's room notice it."""
    path = tree / PACKAGE / formula.file
    text = path.read_text()
    if text.count(formula.right) < 1:
        sys.exit(f"{formula.file} has no {formula.right!r}: FORMULAS must follow it")
    path.write_text(text.replace(formula.right, formula.wrong, 1))
    try:
        return any(fails(tests, tree) for tests in rooms(formula.file))
    finally:
        path.write_text(text)
        print(".", end="", file=sys.stderr, flush=True)


def rooms(file: str) -> list[list[str]]:
    """Return the tests of a file's room, first those that are likeliest to notice."""
    room = Path(file).parts[0]
    patterns = [f"tests/{room}/test_{Path(file).stem}{end}.py" for end in ("_*", "")]
    named = [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)]
    own = [named] if named else []
    if room in ("algorithms", "shards"):
        of_shards = [["tests/shards"], [TAKEN_OVER]] if room == "shards" else []
        return [*own, *of_shards, about(file, "tests/algorithms")]
    if room in ("rma", "engines", "survival") or file == "data/schedule.py":
        # Without ranks; what workers take is what settlements find.
        return [
            *own,
            ["tests/survival/test_obeying.py", "tests/survival/test_incidents.py", *OF_NOTES],
            [LEFT_BEHIND],
        ]
    if file in ELSEWHERE:
        return [[ELSEWHERE[file]]]
    return [*own, [f"tests/{room}"], *([["tests/algorithms/test_steps.py", TAKEN_OVER]] if room == "rules" else [])]


def about(file: str, folder: str) -> list[str]:
    """Return the tests in a folder, those first that mention the most often what a file defines."""
    names = re.findall(r"^(?:class|def) (\w+)", (ROOT / PACKAGE / file).read_text(), re.MULTILINE)
    mentions = re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)
    found = sorted((ROOT / folder).glob("test_*.py"), key=lambda path: -len(mentions.findall(path.read_text())))
    return [str(path.relative_to(ROOT)) for path in found]


def fails(tests: list[str], tree: Path) -> bool:
    """Tell whether a test fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{done.stdout.decode()}\n{command}: exit code {done.returncode}")
    return done.returncode == 1


if __name__ == "__main__":
    main()
