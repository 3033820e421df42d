"""A network that is too large for the memory of one rank trains when it is cut, on servers that have no more memory."""

import json
import os
import re
import resource

import pytest

#: Bytes of the parameters of the large network.
LARGE = 4 * (64 * 6144 + 6144 + 6144 * 6144 + 6144 + 6144 * 10 + 10)
#: Each rank may have so much address space, if there is a limit, and writes at its end how much it had at most.
LIMITED = """
import atexit, os, resource

def tell():
    with open("/proc/self/status") as status, open("peaks", "a") as peaks:
        peaks.write(next(line for line in status if line.startswith("VmPeak")))

if "OMPI_COMM_WORLD_RANK" in os.environ:
    atexit.register(tell)
    limit = int(os.environ["LIMIT_OF_A_RANK"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
"""


@pytest.fixture
def train(start, tmp_path):
    """Train a network of two layers of `units` units; return the exit code, stdout and stderr."""
    (tmp_path / "sitecustomize.py").write_text(LIMITED)
    # Windows of shared memory are in the address space of all ranks of a node, and so are arenas of other threads.
    variables = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), "MPIDL_WINDOWS": "create",
        "MALLOC_ARENA_MAX": "1",
    }  # fmt: skip

    def run(units, ranks, partitions, limit):
        layers = "".join(
            f'[[model.layer]]\ntype = "dense"\nunits = {count}\nactivation = "{activation}"\n'
            for count, activation in ((units, "relu"), (units, "relu"), (10, "identity"))
        )
        (tmp_path / "large.toml").write_text(
            f"""
            [run]
            steps = 3
            [data]
            source = "digits"
            batch = 16
            portion = 16
            {layers}
            [server]
            rule = "sgd"
            rate = 1e-6
            [device]
            kind = "cpu"
            [topology]
            servers = 2
            partitions = {partitions}
            """
        )
        process = start("train", "large.toml", "-n", ranks, "--json", LIMIT_OF_A_RANK=str(limit), **variables)
        output, errors = process.communicate(timeout=300)
        return process.returncode, output, errors

    return run


@pytest.mark.long
def test_a_network_too_large_for_a_rank_trains_when_it_is_cut(train, tmp_path):
    code, _, errors = train(16, ranks=5, partitions=2, limit=resource.RLIM_INFINITY)
    assert code == 0, errors
    small = max(1024 * int(each) for each in re.findall(r"VmPeak:\s+(\d+) kB", (tmp_path / "peaks").read_text()))
    limit = small + 3 * LARGE // 2
    # Cut, a worker has half of parameters and gradient; a server half of the parameters, and a copy to save.
    code, output, errors = train(6144, ranks=5, partitions=2, limit=limit)
    assert code == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert (summary["partitions"], summary["samples"]) == (2, 48)
    code, _, errors = train(6144, ranks=4, partitions=1, limit=limit)
    assert code != 0
    (line,) = [line for line in errors.splitlines() if "llocate" in line]
    assert "worker 0" in line
    assert "Traceback" not in errors
