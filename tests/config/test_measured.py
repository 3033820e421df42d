"""What ``mpidl doctor --save`` keeps: the file, and the costs that follow."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.config.measured import Link, Measured, MeasuredNode, read, save
from mpidl.errors import UsageError
from mpidl.partition.costs import Costs
from mpidl.paths import measured_file

ORIGIN = {"hosts": ("alpha",), "mpi": "Open MPI v5.0.8", "date": "2026-03-01T10:00:00+00:00"}
NODE = MeasuredNode(**ORIGIN, cores=4, memory=8000, memcpy=9e9, update=2e9, flops=3e10, flops_of={"conv2d": 4e10})
SPEEDS = {"push_bandwidth": 4e9, "fetch_bandwidth": 2e9, "send_bandwidth": 6e9}
LINK = Link(**ORIGIN, **SPEEDS, push_latency=1e-6, fetch_latency=2e-6, send_latency=3e-6)
ETHERNET = replace(LINK, hosts=("alpha", "beta"), send_bandwidth=1e9, send_latency=4e-5)

speeds = st.floats(1e-3, 1e15)
words = st.text(st.characters(codec="utf-8"))
links = st.builds(
    lambda hosts, mpi, values: Link(hosts=tuple(hosts), mpi=mpi, date="2026-03-01", **values),
    st.lists(words), words, st.fixed_dictionaries({name: speeds for name in vars(LINK) if "_" in name}),
)  # fmt: skip


@given(links, st.none() | links)
def test_what_is_saved_is_read(tmp_path_factory, within, between):
    path = tmp_path_factory.mktemp("user") / "mpidl" / "measured.toml"
    save(path, Measured(NODE, within, between))
    assert read(path) == Measured(NODE, within, between)


def test_what_was_measured_elsewhere_stays(tmp_path):
    path = tmp_path / "measured.toml"
    save(path, Measured(NODE, LINK))
    save(path, Measured(replace(NODE, cores=8), between=ETHERNET))
    assert read(path) == Measured(replace(NODE, cores=8), LINK, ETHERNET)
    assert str(read(path)) == (
        "node on alpha on 2026-03-01, links within on alpha on 2026-03-01, links between nodes on alpha and beta on "
        "2026-03-01"
    )


def test_costs():
    assert Measured().costs == Costs()
    assert Measured(NODE, LINK).costs == Costs(3e10, 6e9, 3e-6, memory=2000, flops_of={"conv2d": 4e10})
    assert Measured(between=ETHERNET).costs == Costs(between_bandwidth=1e9, between_latency=4e-5)


def test_where_a_user_keeps_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert measured_file() == tmp_path / "mpidl" / "measured.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert measured_file() == tmp_path / ".config" / "mpidl" / "measured.toml"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[nodes]", "section: unknown name 'nodes', did you mean 'node'?"),
        ("[node]\ncores = 0", "node.cores: expected int >= 1, found 0"),
        ("[node]\ncores = 2", "node.hosts: missing, expected list of str"),
        ("[within]\nspeed = 2", "within.speed: unknown key"),
    ],
)
def test_another_file(tmp_path, text, line):
    path = tmp_path / "measured.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {line}")
    with pytest.raises(UsageError):
        save(path, Measured(NODE))
    assert path.read_text() == text


def test_a_place_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "measured.toml"
    with pytest.raises(UsageError, match=rf"^{path}: can't be written \(File exists\)$"):
        save(path, Measured(NODE))
