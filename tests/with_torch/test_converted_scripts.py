"""Scripts of three styles become jobs: few lines change, and the figure at the end is the original's."""

import difflib
import runpy
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
STYLES = ("tabular", "text", "unet")


@pytest.mark.parametrize("style", STYLES)
def test_at_most_20_lines_change(style):
    plain, job = ((SCRIPTS / name).read_text().splitlines() for name in (f"{style}.py", f"{style}_mpidl.py"))
    blocks = difflib.SequenceMatcher(None, plain, job, False).get_opcodes()
    assert sum(max(end - start, stop - first) for kind, start, end, first, stop in blocks if kind != "equal") <= 20


@pytest.mark.parametrize("style", [STYLES[0], *(pytest.param(style, marks=pytest.mark.long) for style in STYLES[1:])])
def test_the_figure_is_the_originals_within_a_point(style, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def figure(name):
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return float(capsys.readouterr().out.split()[-1])

    expected = figure(f"{style}.py")
    assert expected > 0.85
    assert figure(f"{style}_mpidl.py") > expected - 0.01
