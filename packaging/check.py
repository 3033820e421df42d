"""Run what can be run of the recipes beside this file, as ``make recipes`` does.

EasyBuild checks the easyconfig's style and finds its dependencies, a library of conda reads the requirements, and the
steps of the Apptainer definitions run in roots that debootstrap makes, up to a training on the host's and on the
container's MPI. A line says what is skipped. Spack is on no package index: tests/docs/test_recipes.py reads its recipe.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: What Apptainer mounts in a container, and then the rest of the arguments as a command.
MOUNTED = 'mount --rbind /dev "$0/dev"; mount -t proc proc "$0/proc"; mount --bind /tmp "$0/tmp"; exec "$@"'
TRAIN = "mpidl train /opt/digits.toml --set run.epochs=3"


def run(*command: object, **options: Any) -> None:
    """Run a command; raise CalledProcessError if it fails."""
    subprocess.run(list(map(str, command)), check=True, **options)


def easybuild(environment: Path) -> None:
    """Check the style of the easyconfig, and that EasyBuild has all that it depends on."""
    lmod = os.environ.get("LMOD_CMD") or next(map(str, Path("/usr/share/lmod").glob("*/libexec/lmod")), None)
    if lmod is None:
        print("easybuild: skipped: there is no Lmod")
        return
    recipe = next(HERE.glob("easybuild/*.eb"))
    eb = [environment / "bin/eb", "--allow-use-as-root-and-accept-consequences", recipe]
    found = {"LMOD_CMD": lmod, "EB_PYTHON": sys.executable, "EASYBUILD_PREFIX": str(environment / "easybuild")}
    for check in (["--check-style"], ["--dry-run", "--robot"]):
        done = subprocess.run([*eb, *check], env=os.environ | found, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout}easybuild: {' '.join(check)} failed")
    print(f"easybuild: good style; {done.stdout.count('(module: ') - 1} modules that it depends on are known")


def conda() -> None:
    """Read the requirements as conda's solvers do."""
    import yaml
    from rattler import MatchSpec

    recipe = yaml.safe_load((HERE / "conda/recipe.yaml").read_text())
    for needed in recipe["requirements"].values():
        for each in needed:
            MatchSpec(each.replace("${{ python_min }}", recipe["context"]["python_min"]), strict=True)
    print("conda: requirements read")


def container(definition: Path, base: Path, wheel: Path, mpi: Path) -> None:
    """Carry out the steps of an Apptainer definition in a copy of a root, and train in it."""
    _, *parts = re.split(r"^%(\w+)\n", definition.read_text(), flags=re.MULTILINE)
    steps = dict(zip(parts[::2], parts[1::2], strict=True))
    kept = {name: value for name, value in os.environ.items() if name.startswith(("OMP", "OPENBLAS", "PRTE"))}
    variables = kept | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        run("cp", "-a", base, root)
        shutil.copy("/etc/resolv.conf", root / "etc")
        if certificates := os.environ.get("PIP_CERT"):  # a mirror's
            shutil.copy(certificates, root / "etc/pip.crt")
            variables["PIP_CERT"] = "/etc/pip.crt"
        shutil.copy(wheel, root / "opt")
        shutil.copy(HERE.parent / "jobs/digits.toml", root / "opt")

        def inside(script: str, *before: object, mounts: str = MOUNTED) -> None:
            command = [*before, "chroot", root, "/bin/sh", "-ec", script]
            run("unshare", "--mount", "/bin/sh", "-ec", mounts, root, *command, env=variables)

        inside(steps["post"])
        inside(steps["environment"] + steps["test"])
        if (root / "opt/mpidl/bin/mpirun").exists():
            inside(f"{steps['environment']}\n{TRAIN} -n 4")
        else:
            (root / mpi.relative_to("/")).mkdir(parents=True)
            bound = f'mount --bind "{mpi}" "$0{mpi}"; {MOUNTED}'
            ranks = [mpi / "bin/mpirun", "--oversubscribe", "-n", "4"]
            inside(f"{steps['environment']}\nexport LD_LIBRARY_PATH={mpi}/lib; {TRAIN}", *ranks, mounts=bound)
    print(f"{definition.name}: built and trained")


def main(environment: Path, mpi: Path) -> None:
    """Check all recipes; `environment` has their tools, and `mpi` an Open MPI."""
    easybuild(environment)
    conda()
    print("spack: skipped: it is on no package index")
    if os.geteuid() or not shutil.which("debootstrap"):
        print("apptainer: skipped: its steps need root and debootstrap")
        return
    base = environment / "trixie"
    if not base.exists():
        part = base.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "trixie", part, stdout=subprocess.DEVNULL)
        part.rename(base)
    wheel = next((environment / "wheels").glob("mpidl-*.whl"))
    for definition in sorted(HERE.glob("apptainer/*.def")):
        container(definition, base, wheel, mpi)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(*(Path(each).resolve() for each in sys.argv[1:]))
