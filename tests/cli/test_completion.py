"""``mpidl --completion``: scripts by which shells complete the command line."""

import subprocess
import sys

import pytest

from mpidl.cli import main

#: Completes the last of its words as bash does, and prints what fits.
BASH = '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_mpidl; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture
def script(capsys):
    """Return a function that returns the script for a shell."""

    def script(shell):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["--completion", shell])
        return capsys.readouterr().out

    return script


def test_bash_completes_commands_options_and_files(script, tmp_path):
    (tmp_path / "script").write_text(script("bash"))
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    for file in ("job.toml", "rubbish.txt"):
        (tmp_path / file).touch()

    def completed(*words):
        command = ["bash", "-c", BASH, "./script", "mpidl", *words]
        return set(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split())

    assert completed("tr") == {"train"}
    assert completed("data", "") == {"pack"}
    assert completed("train", "--re") == {"--resume", "--retries"}
    assert completed("train", "job.toml", "--set", "run.epochs=1", "--j") == {"--json"}
    assert completed("train", "j") == {"job.toml"}
    assert completed("report", "ru") == {"runs"}
    assert completed("predict", "runs/digits", "ru") == {"runs", "rubbish.txt"}
    assert completed("data", "pack", "--test", "ru") == {"runs"}


@pytest.mark.parametrize(
    ("shell", "parts"),
    [
        ("zsh", ["#compdef mpidl\n", "    doctor:'", '"--retries[', ':_files -/"\n', ':_files"\n']),
        ("fish", ["complete -c mpidl ", " -l retries ", "__fish_complete_directories", "__fish_complete_path"]),
    ],
)
def test_scripts_of_other_shells(script, shell, parts):
    text = script(shell)
    assert [part for part in parts if part not in text] == []
    assert all(name in text for name in ("evaluate", "simulate", "test-fraction", "pack"))


def test_an_unknown_shell_and_a_missing_package_are_one_line(capsys, monkeypatch):
    assert main(["--completion", "ksh"]) == 2
    assert "argument --completion: invalid choice: 'ksh'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--completion", "bash"]) == 2
    told = "mpidl: shtab is not installed, expected `pip install 'mpidl[completion]'`\n"
    assert capsys.readouterr() == ("", told)
