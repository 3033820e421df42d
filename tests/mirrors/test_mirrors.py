"""Mirrors on nodes of one process: where their files lie, and which of them a job goes on from."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from nodes import NODES, Nodes

from mpidl.errors import MpidlError
from mpidl.mirrors.exchange import Address, Keeper, NodeMemory, Remote
from mpidl.mirrors.memory import TOKEN, is_private, sweep
from mpidl.parameters import Range
from mpidl.storage import writer
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import steps
from mpidl.storage.files import INDEX, shard_file
from mpidl.storage.integrity import verify

ALL = {shard_file(0), shard_file(1), shard_file(2), "replica-0.h5", INDEX}


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "runs" / "one"
    (directory / "checkpoints").mkdir(parents=True)
    return directory


@pytest.fixture
def nodes(tmp_path, monkeypatch, run):
    return Nodes(tmp_path, monkeypatch, run)


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_each_file_of_the_newest_mirror_is_in_the_memory_of_two_nodes(nodes):
    assert nodes.make(10, 20) == [True, True]
    found = [nodes.files(node) for node in sorted(set(NODES))]
    assert [set(each) for each in found] == [{".4-ab12.interim"}] * 3
    names = [name for each in found for files in each.values() for name in files]
    assert {name: names.count(name) for name in names} == dict.fromkeys(ALL, 2)
    assert {path.name for path in nodes.run.rglob("*")} == {"checkpoints", TOKEN}


@pytest.mark.parametrize("left", [(1, 2), (0, 2), (0, 1), (0, 1, 2)])
def test_the_loss_of_a_node_leaves_the_mirror(nodes, left):
    nodes.make(10, 20, values=3.0)
    assert nodes.recover(15, left) == (20, [])
    assert steps(nodes.run / "checkpoints") == [20]
    path = nodes.run / "checkpoints" / "20"
    verify(path)
    np.testing.assert_array_equal(Checkpoint(path).read("parameters", Range(0, 20)), 3.0 * np.arange(20))
    assert {each.name for each in path.iterdir()} == ALL
    # What has been made a checkpoint isn't newer than that.
    assert nodes.recover(20, left) == (None, [])


def test_the_newest_of_several_mirrors_is_taken(nodes, tmp_path):
    nodes.make(10)
    for node in set(NODES):  # it hadn't been removed yet
        [mirror] = nodes.memory(node).rglob("*.interim")
        shutil.copytree(mirror, tmp_path / f"earlier{node}")
    nodes.make(20, token="0012")
    for node in set(NODES):
        [later] = nodes.memory(node).rglob("*.interim")
        (tmp_path / f"earlier{node}").rename(later.with_name(mirror.name))
    assert nodes.recover(-1) == (20, [])


def test_a_mirror_is_on_disk_before_it_has_the_name_of_a_checkpoint(nodes, monkeypatch):
    nodes.make(20)
    synced = set()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda file: synced.add(Path(os.readlink(f"/proc/self/fd/{file}"))))
        assert nodes.recover(-1) == (20, [])
    copied = nodes.run / "checkpoints" / ".2-ab12.interim"
    assert {copied, *map(copied.joinpath, ALL)} <= synced


def test_links_to_mirrors_are_not_followed(nodes, tmp_path):
    nodes.make(20)
    places = []
    for node in set(NODES):
        [mirror] = nodes.memory(node).rglob("*.interim")
        mirror.rename(tmp_path / f"elsewhere{node}")
        mirror.symlink_to(tmp_path / f"elsewhere{node}")
        places.append(mirror.parent)
    assert nodes.recover(-1) == (None, [])
    (tmp_path / "link").symlink_to(places[0])
    assert [is_private(each) for each in (places[0], tmp_path / "link")] == [True, False]
    (tmp_path / shard_file(9)).symlink_to(tmp_path / "elsewhere2" / shard_file(1))
    with pytest.raises(OSError, match="a link, expected a regular file"):
        NodeMemory(tmp_path, b"key").open("", shard_file(9))


def remove_copy(nodes):
    nodes.paths(shard_file(1))[0].unlink()


def damage_copy(nodes):
    damage(nodes.paths(shard_file(1))[0])


def open_to_others(nodes):
    next(nodes.memory(2).glob("*/*")).chmod(0o755)


def replace_by_link(nodes):
    place = next(nodes.memory(2).glob("*/*"))
    place.rename(place.with_name("elsewhere"))
    place.symlink_to(place.with_name("elsewhere"))


@pytest.mark.parametrize("harm", [remove_copy, damage_copy, open_to_others, replace_by_link])
def test_a_copy_that_can_not_be_trusted_is_left_out(nodes, harm):
    nodes.make(20)
    harm(nodes)
    assert nodes.recover(-1) == (20, [])
    verify(nodes.run / "checkpoints" / "20")


def lose_two_nodes(nodes):
    return nodes.recover(-1, [0])


def damage_both(nodes):
    for path in nodes.paths(shard_file(2)):
        damage(path)
    return nodes.recover(-1)


@pytest.mark.parametrize("harm", [lose_two_nodes, damage_both])
def test_a_mirror_that_lacks_a_file_is_named_and_left_out(nodes, harm):
    nodes.make(20)
    step, lines = harm(nodes)
    assert step is None
    assert [line.partition(" lacks ")[0] for line in lines] == [f"{nodes.run}: the mirror of step 20"]
    assert not steps(nodes.run / "checkpoints")
    assert not list((nodes.run / "checkpoints").iterdir())


def test_mirrors_of_other_runs_are_left_alone(nodes):
    nodes.make(20)
    token = nodes.run / TOKEN
    content = token.read_bytes()
    token.write_bytes(b"another")
    assert nodes.recover(-1) == (None, [])
    token.unlink()
    assert nodes.recover(-1) == (None, [])
    token.write_bytes(content)
    copy = nodes.run.with_name("copy")
    shutil.copytree(nodes.run, copy)
    nodes.run, original = copy, nodes.run
    assert nodes.recover(-1) == (None, [])
    nodes.run = original
    assert nodes.recover(-1)[0] == 20


def test_a_mirror_for_which_there_is_no_room_is_not_made(nodes, monkeypatch, capfd):
    def write(directory, number, part, state):
        with monkeypatch.context() as patched:
            if number == 1 and state["clock"] in (20, 30):
                patched.setattr(writer, "check_room", fail)
            writer.save_shard(directory, number, part, state)

    def fail(directory, needed):
        raise MpidlError("no room")

    lock = threading.Lock()  # The other ranks' files must not fail.

    def one_at_a_time(*arguments):
        with lock:
            write(*arguments)

    assert nodes.make(10, 20, 30, write=one_at_a_time) == [True, False, False]
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(": is ")[0] for line in lines] == [
        "mpidl: topology.mirror: none made at step 20: shard-1.h5 isn't there"
    ]
    # What has been given up takes no room for long.
    assert {name for node in set(NODES) for name in nodes.files(node)} == {".2-ab12.interim", ".6-ab12.interim"}
    assert nodes.make(40, token="cd34") == [True]
    assert {name for node in set(NODES) for name in nodes.files(node)} == {".2-cd34.interim"}
    monkeypatch.setattr(writer, "RESERVE", 1 << 60)
    assert nodes.make(50) is None
    assert "topology.mirror: the run continues without: checkpoints in memory" in capfd.readouterr().err
    assert nodes.recover(-1)[0] == 40


def test_places_of_runs_that_are_over_are_removed(nodes):
    nodes.make(20)
    [parent] = nodes.memory(0).iterdir()
    sweep(parent)
    assert nodes.files(0)
    (nodes.run / "summary.json").write_text("{}")
    sweep(parent)
    assert not list(nodes.memory(0).iterdir())
    [parent] = nodes.memory(2).iterdir()
    (next(parent.iterdir()) / "notes").write_text("mine")
    shutil.rmtree(nodes.run)
    sweep(parent)
    assert [path.name for path in parent.rglob("*") if path.is_file()] == ["notes"]


class Torn:
    """A file whose node is lost while its first half is being sent."""

    def __init__(self, content):
        self._parts, self._size = iter([content[: len(content) // 2]]), len(content)

    def __enter__(self):
        return self

    def __exit__(self, *details):
        pass

    def seek(self, *place):
        return self._size

    def read(self, size):
        for part in self._parts:
            return part
        raise ConnectionResetError


@pytest.fixture
def keeper(tmp_path):
    keeper = Keeper(0, NodeMemory(tmp_path, b"key"), b"key")
    yield keeper
    keeper.close()


def test_half_a_file_is_not_taken_for_a_whole(keeper, tmp_path, monkeypatch):
    monkeypatch.setattr(NodeMemory, "open", lambda self, mirror, name: Torn(b"content" * 9))
    with Remote(keeper.address, b"key") as other, pytest.raises(MpidlError, match="has ended the connection"):
        other.copy(".2-ab.interim", shard_file(0), tmp_path)


def test_another_node_is_not_taken_for_the_one_that_is_asked(keeper):
    other = Remote(Address(1, keeper.address.hosts, keeper.address.port), b"key")
    with pytest.raises(MpidlError, match="another node answers at"), other:
        pass


def test_a_keeper_talks_to_those_who_know_the_key(keeper, tmp_path):
    with Remote(keeper.address, b"key") as other:
        assert other.describe(".2-ab.interim") == {}
        with pytest.raises(MpidlError, match="has ended the connection"):
            other.copy(".2-ab.interim", shard_file(0), tmp_path)
    for key in (b"another", b"key"):
        with pytest.raises(MpidlError, match="can't be reached"), Remote(keeper.address, key):
            pass
        keeper.close()
