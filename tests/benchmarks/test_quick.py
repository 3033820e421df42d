"""The smallest form of every benchmark runs and prints its figures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: What benchmarks are compared with or draw with. Where one of these isn't installed, they are skipped.
PEERS = ("torch", "scipy", "matplotlib")
#: Longer forms of some.
LONG = [
    ["bring.py", "--only", "mlp"], ["crashes.py", "--deterministic"], ["downpour.py", "--models", "module"],
    ["sparse.py", "--only", "pytorch", "ddp", "ahead"],
]  # fmt: skip
COMMANDS = [
    *([path.name] for path in sorted(BENCHMARKS.glob("*.py")) if '"__main__"' in path.read_text()),
    ["downpour.py", "--profile"], ["sparse.py", "--only", "profile"],
]  # fmt: skip


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(pytest.param(command, marks=pytest.mark.long) for command in LONG)], ids=" ".join
)
def test_the_smallest_form_prints_a_figure(command):
    words = [sys.executable, BENCHMARKS / command[0], "--quick", *command[1:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if missing := re.search(rf"(?:No module named '|^not installed: .*)({'|'.join(PEERS)})", done.stderr, re.MULTILINE):
        pytest.skip(f"{missing[1]} is not installed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(?:^| )\d+(?:\.\d+)?(?: |$)", done.stdout, re.MULTILINE), done.stdout
