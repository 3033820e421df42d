"""Three scripts of PyTorch become jobs with at most 20 changed lines, and end within a point of where they did."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPTS = Path(__file__).parent / "scripts"
STYLES = ["tabular", "text", "unet"]


@pytest.mark.parametrize("style", STYLES)
def test_few_lines_change(style):
    before, after = ((SCRIPTS / f"{style}{end}.py").read_text().splitlines() for end in ("", "_mpidl"))
    matching = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    assert sum(new_end - new for kind, _, _, new, new_end in matching if kind != "equal") <= 20


def score(script, path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, SCRIPTS / script], cwd=path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return float(re.search(r"^score (\S+)$", run.stdout, re.MULTILINE)[1])


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES)
def test_the_job_is_as_good_as_the_script(style, tmp_path):
    expected = score(f"{style}.py", tmp_path)
    assert expected > 0.8
    assert score(f"{style}_mpidl.py", tmp_path) == pytest.approx(expected, abs=0.01)
