"""The tests of ranks on emulated hosts: ``python tests/cluster/ranks_on_hosts.py -n 3 tests/rma``, with options
of pytest.

`mpirun` is Open MPI's, MPICH's or Intel MPI's, beside this Python or on PATH. Each host has two ranks at most.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hosts import YIELDING, Hosts, lacking

#: Ranks of a host.
SLOTS = 2
#: Thread levels that `mpidl` asks for.
LEVELS = {"windows": "funneled", "mixed": "multiple", "messages": "multiple"}


def of_launchers(hosts: Hosts) -> dict[str, str]:
    """Return variables by which Open MPI's launcher finds hosts, and reaches them; write the file that they name."""
    hostfile, agent = hosts.directory / "hostfile", str(hosts.directory / "agent")
    hostfile.write_text("".join(f"{name} slots={SLOTS}\n" for name in hosts.names))
    return {
        "PRTE_MCA_prte_default_hostfile": str(hostfile), "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": agent, "OMPI_MCA_plm_rsh_agent": agent,
        "TMPDIR": "/var/tmp", **YIELDING,
    }  # fmt: skip


def words(hosts: Hosts, ranks: int, command: Sequence[str], variables: Mapping[str, str] = {}) -> list[str]:
    """Return the words that start ranks of a command on the hosts, which share a directory for temporary files."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert mpirun is not None, "no mpirun"
    found = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True).stdout
    if "Open MPI" in found:
        options = ["--bind-to", "none", "--allow-run-as-root"]
    else:
        names = ",".join(f"{name}:{SLOTS}" for name in hosts.names)
        options = ["-launcher", "ssh", "-launcher-exec", str(hosts.directory / "agent"), "-hosts", names]
    chosen = {"TMPDIR": tempfile.gettempdir(), "OMPI_MCA_osc": "^ucx", "OMPI_MCA_btl": "^ofi", **variables}
    assigned = [f"{name}={value}" for name, value in chosen.items()]
    return [mpirun, *options, "-n", str(ranks), "env", *assigned, *command]


def main() -> int:
    """Run the tests that the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", dest="ranks", type=int, default=3)
    parser.add_argument("--transport", choices=LEVELS, default="mixed")
    arguments, rest = parser.parse_known_args()
    if lacks := lacking():
        print(f"hosts can't be emulated: this needs {lacks}")
        return 0
    pytest = [sys.executable, "-m", "pytest", "--with-mpi", "-m", "mpi", f"--transport={arguments.transport}", *rest]
    # Intel MPI's launcher finds its own parts there.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as directory, Hosts(Path(directory), -(-arguments.ranks // SLOTS)) as hosts:
        variables = {"MPI4PY_RC_THREAD_LEVEL": LEVELS[arguments.transport]}
        command = words(hosts, arguments.ranks, pytest, variables)
        return hosts.begin(command, env=os.environ | of_launchers(hosts)).wait()


if __name__ == "__main__":
    sys.exit(main())
