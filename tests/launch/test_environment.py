"""What the environment says of the world, for each launcher."""

import importlib
import os
import re
import resource
import sys

import pytest

import mpidl
from mpidl.errors import UsageError
from mpidl.launch.environment import OPEN_FILES, UCX_SEGMENTS, check_world, job, prepare_mpi, threads, world

BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_TASKS_PER_NODE": "2(x2)"}
SRUN = BATCH_SCRIPT | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NODEID": "1"}


@pytest.mark.parametrize(
    ("environment", "rank", "size"),
    [
        ({}, 0, 1),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5", "PMIX_RANK": "2"}, 2, 5),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, 1, 3),
        (BATCH_SCRIPT, 0, 1),
        (BATCH_SCRIPT | {"SLURM_STEP_ID": "batch"}, 0, 1),
        (BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967291"}, 0, 1),
        (BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967290"}, 0, 1),
        (SRUN, 3, 4),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "6"}, 3, 6),
        (SRUN | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "9"}, 1, 9),
        (SRUN | {"PMI_RANK": "1", "PMI_SIZE": "9"}, 1, 9),
    ],
)
def test_world(environment, rank, size):
    assert world(environment)[:2] == (rank, size)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (SRUN, ["SLURM_NTASKS=4", "srun --mpi=pmix"]),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "6"}, ["SLURM_STEP_NUM_TASKS=6", "srun --mpi=pmix"]),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5"}, ["OMPI_COMM_WORLD_SIZE=5", "mpirun"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ["PMI_SIZE=2", "mpirun"]),
        (SRUN | {"PMI_RANK": "0", "PMI_SIZE": "4"}, ["PMI_SIZE=4", "srun --mpi=pmix"]),
    ],
)
def test_ranks_that_do_not_see_each_other(environment, words):
    with pytest.raises(UsageError) as error:
        check_world(1, environment)
    text = str(error.value)
    assert all(word in text for word in words)
    assert "\n" not in text


def test_worlds_that_are_right():
    check_world(1, {})
    check_world(1, BATCH_SCRIPT)
    check_world(4, SRUN)
    check_world(4, {})


@pytest.mark.parametrize(
    ("environment", "own", "expected"),
    [
        ({}, 40, 40),
        (BATCH_SCRIPT, 40, 40),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "9", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 40, 13),
        ({"PMI_RANK": "0", "PMI_SIZE": "9", "MPI_LOCALNRANKS": "4"}, 40, 10),
        ({"PMI_RANK": "0", "PMI_SIZE": "9"}, 40, 4),
        (SRUN, 40, 20),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "5(x1),3,1(x2)"}, 40, 13),
        (SRUN | {"SLURM_TASKS_PER_NODE": "4,1(x2)", "SLURM_NODEID": "2"}, 40, 40),
        (SRUN | {"PMI_RANK": "0", "PMI_SIZE": "4"}, 40, 20),
        # A rank that is bound has cores of its own.
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, 6, 6),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, 40, 10),
        (SRUN, 20, 20),
        (SRUN | {"SLURM_CPUS_PER_TASK": "3"}, 40, 3),
        (SRUN | {"SLURM_CPUS_PER_TASK": "3"}, 2, 2),
        ({}, 6, 6),
    ],
)
def test_threads_are_a_share_of_the_cores_of_a_node(monkeypatch, environment, own, expected):
    cores = {0: set(range(own)), os.getppid(): set(range(40))}
    monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__)
    assert threads(environment) == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert threads(environment) == 1


def test_the_number_of_a_job():
    assert job({}) is None
    assert job(BATCH_SCRIPT) == "Slurm 7"
    assert job({"PBS_JOBID": "3.head"}) == "PBS 3.head"


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE=x in the environment: "),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE=0 in the environment: "),
        ({"PMI_RANK": "", "PMI_SIZE": "3"}, "PMI_RANK= in the environment: "),
        ({"PMI_RANK": "3", "PMI_SIZE": "3"}, "PMI_RANK=3 in the environment: "),
        ({"PMI_RANK": "٣", "PMI_SIZE": "9"}, "PMI_RANK=٣ in the environment: "),
        (SRUN | {"SLURM_PROCID": "-1"}, "SLURM_PROCID=-1 in the environment: "),
        (SRUN | {"SLURM_NTASKS": "9" * 5000}, "SLURM_NTASKS=" + "9" * 57 + "... in the environment: "),
    ],
)  # fmt: skip
def test_variables_that_no_launcher_sets_are_one_line(environment, line):
    with pytest.raises(UsageError, match=f"^{re.escape(line)}expected a number .* as a launcher sets it, or unset it$"):
        world(environment)


@pytest.mark.parametrize("variables", [{"MPI_LOCALNRANKS": "0"}, {"MPI_LOCALNRANKS": "x"}])
def test_numbers_of_a_node_that_no_launcher_sets_are_one_line(variables):
    with pytest.raises(UsageError, match=r"^MPI_LOCALNRANKS="):
        threads({"PMI_RANK": "0", "PMI_SIZE": "4"} | variables)
    assert threads(SRUN | {"SLURM_TASKS_PER_NODE": "0(x2)"}) >= 1


def test_what_mpi_is_told_unless_the_user_did(monkeypatch, tmp_path):
    names = ("MPI4PY_RC_THREAD_LEVEL", "OMPI_MCA_osc", "OMPI_MCA_btl", "OMPI_MCA_pml", "UCX_TCP_RX_SEG_SIZE")
    multiple = {"OMPI_MCA_osc": "rdma", "MPI4PY_RC_THREAD_LEVEL": "multiple"}
    for network, given, expected in (
        ("ethernet", {}, ["funneled", "^ucx", "^ofi", None, "256k"]),
        ("infiniband", {}, ["funneled", None, None, None, None]),
        ("slingshot", {}, ["funneled", "^ucx", None, None, "256k"]),
        ("ethernet", {"OMPI_MCA_pml": "ucx"}, ["funneled", None, None, "ucx", "256k"]),
        ("ethernet", {"OMPI_MCA_btl": "self,sm"}, ["funneled", "^ucx", "self,sm", None, "256k"]),
        ("infiniband", multiple, ["multiple", "rdma", None, None, None]),
        ("ethernet", {"UCX_TCP_RX_SEG_SIZE": "64k"}, ["funneled", "^ucx", "^ofi", None, "64k"]),
        ("ethernet", {"UCX_TLS": "posix,self"}, ["funneled", "^ucx", "^ofi", None, None]),
    ):
        for name in ("INFINIBAND", "SLINGSHOT"):
            directory = tmp_path if name.lower() == network else tmp_path / "none"
            monkeypatch.setattr(f"mpidl.launch.environment.{name}", directory)
        monkeypatch.setattr(os, "environ", dict(given))
        prepare_mpi()
        assert [os.environ.get(name) for name in names] == expected


@pytest.mark.parametrize(
    ("launcher", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, True),
        ({"PMI_RANK": "x"}, True),
        (SRUN, True),
        (BATCH_SCRIPT, False),
        ({}, False),
    ],
)
def test_a_rank_is_prepared_when_the_package_is_imported(monkeypatch, tmp_path, launcher, rank):
    monkeypatch.setattr("mpidl.launch.environment.INFINIBAND", tmp_path / "none")
    monkeypatch.setattr(os, "environ", dict(launcher))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    importlib.reload(mpidl)
    found = [os.environ.get(name) for name in ("OMPI_MCA_osc", *UCX_SEGMENTS, "MPI4PY_RC_THREAD_LEVEL")]
    assert found == (["^ucx", "256k", "256k", None] if rank else [None] * 4)


@pytest.mark.parametrize(
    ("soft", "hard", "after"),
    [
        (1024, 4096, 4096),
        (1024, 10**9, OPEN_FILES),
        (1024, resource.RLIM_INFINITY, OPEN_FILES),
        (4096, 4096, None),
        (10**6, 10**9, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_a_rank_may_open_as_many_files_as_the_system_allows(monkeypatch, soft, hard, after):
    monkeypatch.setattr(os, "environ", {})
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: raised.append(limits))
    prepare_mpi()
    assert raised == ([] if after is None else [(after, hard)])


@pytest.mark.parametrize(
    ("transport", "local", "distributed", "level"),
    [
        ("windows", "2", False, "funneled"),
        ("windows", "2", True, "multiple"),
        ("windows", "4", True, "funneled"),
        ("auto", "4", False, "funneled"),
        ("mixed", "4", False, "funneled"),
        ("auto", "2", False, "multiple"),
        ("mixed", "2", False, "multiple"),
        ("messages", "4", False, "multiple"),
    ],
)
def test_several_threads_call_mpi_only_where_messages_travel(monkeypatch, transport, local, distributed, level):
    sizes = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": local}
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    for name in ("MPI4PY_RC_THREAD_LEVEL", "OMPI_MCA_osc", *UCX_SEGMENTS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    prepare_mpi(transport, distributed)
    assert os.environ["MPI4PY_RC_THREAD_LEVEL"] == level
    monkeypatch.delenv("MPI4PY_RC_THREAD_LEVEL")
    prepare_mpi(transport, distributed, survives=True)
    assert os.environ["MPI4PY_RC_THREAD_LEVEL"] == ("serialized" if level == "funneled" and local == "4" else level)
