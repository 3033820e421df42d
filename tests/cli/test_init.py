"""``mpidl init``: the jobs of the package under names of the user's."""

import re

import pytest

from mpidl.cli.init import EXAMPLES, JOBS
from mpidl.config import load


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("name", [None, "mine"])
def test_a_job_names_only_what_is_written_beside_it(mpidl_here, tmp_path, example, name):
    done = mpidl_here("init", *([] if name is None else [name]), "--example", example)
    stem = name or EXAMPLES[example].stem
    assert done.stdout.startswith(f"{stem}.toml: {EXAMPLES[example].about}")
    assert done.stdout.endswith(f"    mpidl train {stem}.toml -n 4\n")
    text = (tmp_path / f"{stem}.toml").read_text()
    assert "jobs/" not in text
    assert f"mpidl train {stem}.toml" in text
    assert load(tmp_path / f"{stem}.toml").run.name == stem
    code = (JOBS / f"{EXAMPLES[example].stem}.py").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ([f"{stem}.py"] if code else []) + [f"{stem}.toml"]
    factories = re.findall('^factory = "(.+?)"', text, re.MULTILINE)
    assert {each.partition(":")[0] for each in factories} == ({stem} if code else set())
    for each in factories:
        assert f"\ndef {each.partition(':')[2]}(" in (tmp_path / f"{stem}.py").read_text()


def test_the_default_is_the_digits(mpidl_here, tmp_path):
    mpidl_here("init")
    written = (tmp_path / "digits.toml").read_text()
    assert written == (JOBS / "digits.toml").read_text().replace("jobs/", "")


@pytest.mark.parametrize(
    ("scheduler", "command"), [("slurm", "sbatch"), ("pbs", "qsub"), ("flux", "flux batch")], ids=lambda each: each
)
def test_a_batch_script_is_that_of_submit(mpidl_here, tmp_path, scheduler, command):
    done = mpidl_here("init", "mine", f"--{scheduler}")
    name = f"mine.{'sbatch' if scheduler == 'slurm' else scheduler}"
    assert done.stdout.splitlines()[-1] == f"    {command} {name}"
    words = ("submit", "mine.toml", "--nodes", 1, "--ranks-per-node", 4, "--time", "30:00", "--scheduler", scheduler)
    assert (tmp_path / name).read_text() == mpidl_here(*words, "--print").stdout
    # Schedulers don't create the directory of a job's log.
    assert (tmp_path / "runs").is_dir()


def test_a_list(mpidl_here, tmp_path):
    lines = mpidl_here("init", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(EXAMPLES)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--example", "burger"], "--example: 'burger', no such example, did you mean 'burgers'?"),
        (["json", "--example", "torch"], "json: an installed module has this name, expected another for json.py"),
        (["a/b"], "'a/b': expected a name of letters, digits and _ for the job's files"),
        (["1a", "--example", "clicks"], "'1a': expected a name of letters, digits and _ for the job's files"),
        (["here"], "here.toml: exists already, expected another name: mpidl init NAME"),
        (["--slurm", "--pbs"], "argument --pbs: not allowed with argument --slurm (see `mpidl init --help`)"),
    ],
)
def test_wrong_words(mpidl_here, tmp_path, words, line):
    (tmp_path / "here.toml").touch()
    done = mpidl_here("init", *words)
    assert (done.returncode, done.stderr) == (2, f"mpidl: {line}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["here.toml"]
