"""Whatever changes in a checkpoint is found, and the newest good one is taken."""

import os
import re
import shutil
import threading

import numpy as np
import pytest
from saved import LAYOUT, OTHER, POSITION, save

from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Range
from mpidl.storage import checkpoints, integrity
from mpidl.storage.checkpoints import latest, newest_good
from mpidl.storage.files import scratch
from mpidl.storage.integrity import BLOCK, DamagedError, create, verify, verify_file, verify_index
from mpidl.storage.writer import CheckpointIndex, save_index, save_shard

FILES = ["index.h5", "shard-0.h5", "shard-1.h5", "shard-2.h5", OTHER]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    for seed, step in enumerate((30, 42)):
        save(directory, position=POSITION._replace(step=step), seed=seed)
    return directory


@pytest.fixture
def run(saved, tmp_path):
    """Directory of a run with checkpoints 30 and 42, of different parameters."""
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path


def flip_a_bit(random, path):
    contents = bytearray(path.read_bytes())
    contents[random.integers(len(contents))] ^= 1 << random.integers(8)
    path.write_bytes(contents)


def change_a_byte(random, path):
    contents = bytearray(path.read_bytes())
    contents[random.integers(len(contents))] ^= random.integers(1, 256)
    path.write_bytes(contents)


def zero_a_block(random, path):
    contents, size = bytearray(path.read_bytes()), random.integers(1, 600)
    filled = [start for start in range(0, len(contents), size) if any(contents[start : start + size])]
    start = random.choice(filled)
    contents[start : start + size] = bytes(len(contents[start : start + size]))
    path.write_bytes(contents)


def truncate(random, path):
    os.truncate(path, random.integers(path.stat().st_size))


def extend(random, path):
    path.write_bytes(path.read_bytes() + random.bytes(random.integers(1, 600)))


def delete(random, path):
    path.unlink()


def swap(random, path):
    other = path.with_name(str(random.choice([name for name in FILES if name != path.name])))
    contents = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(contents)


def replace_by_an_older(random, path):
    shutil.copy(path.parents[1] / "30" / path.name, path)


def add_a_shard(random, path):
    shutil.copy(path, path.with_name(f"shard-{random.integers(3, 10)}.h5"))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "mutate",
    [flip_a_bit, change_a_byte, zero_a_block, truncate, extend, delete, swap, replace_by_an_older, add_a_shard],
)
def test_every_mutation_is_detected_and_the_older_checkpoint_taken(run, mutate, file):
    random = np.random.default_rng(FILES.index(file))
    newest, older = run / "checkpoints" / "42", run / "checkpoints" / "30"
    mutate(random, newest / file)
    path, lines = newest_good(run)
    assert path == older
    (line,) = lines
    named = re.fullmatch(re.escape(str(newest)) + r": (\S+\.h5) .*; taking 30 instead", line)[1]
    assert mutate in (swap, replace_by_an_older, add_a_shard) or named == file


@pytest.mark.parametrize("file", FILES)
def test_every_byte_of_a_seal_counts(run, file):
    path = run / "checkpoints" / "42" / file
    contents = path.read_bytes()
    assert contents.startswith(b"xxh3_128 of the %d bytes from byte 512 on: " % (len(contents) - BLOCK))
    seals = verify_index(path.parent)[1]
    for at in range(BLOCK):
        path.write_bytes(contents[:at] + bytes([contents[at] ^ 32]) + contents[at + 1 :])
        with pytest.raises(DamagedError):
            verify_file(path, seals[file]) if file in seals else verify_index(path.parent)
    with pytest.raises(DamagedError):
        verify(path.parent)
    path.write_bytes(contents)
    verify(path.parent)


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(run):
    (run / "checkpoints" / "42").rename(run / "checkpoints" / "50")
    (line,) = newest_good(run)[1]
    assert line == f"{run / 'checkpoints' / '50'}: index.h5 is of step 42; taking 30 instead"


def test_what_does_not_belong_to_mpidl_may_lie_beside_it(run):
    (run / "checkpoints" / "42" / "README").touch()
    assert newest_good(run) == (run / "checkpoints" / "42", [])


def test_the_lines_are_said_on_stderr(run, capsys):
    (run / "checkpoints" / "42" / "shard-1.h5").unlink()
    (run / "checkpoints" / "50").mkdir()
    assert latest(run).position.step == 30
    where = f"mpidl: {run / 'checkpoints'}"
    assert capsys.readouterr().err.splitlines() == [
        f"{where}/50: index.h5 is missing; taking 30 instead",
        f"{where}/42: shard-1.h5 is missing; taking 30 instead",
    ]


def test_without_a_good_one_the_error_is_one_line(run):
    for step in (30, 42):
        os.truncate(run / "checkpoints" / str(step) / "index.h5", 1000)
    with pytest.raises(UsageError) as error:
        newest_good(run)
    checkpoints = run / "checkpoints"
    line = f"{checkpoints}: every checkpoint is damaged; {checkpoints}/42: index.h5 is damaged (checksum)"
    assert str(error.value) == line
    shutil.rmtree(checkpoints)
    with pytest.raises(UsageError, match=r": no checkpoint to read in .*checkpoints$"):
        newest_good(run)


def test_what_cannot_be_read_is_not_passed_over(run):
    shard = run / "checkpoints" / "42" / "shard-1.h5"
    shard.unlink()
    shard.symlink_to(shard)
    with pytest.raises(MpidlError) as error:
        newest_good(run)
    assert not isinstance(error.value, DamagedError)
    assert str(error.value) == f"{shard}: can't be read: a link, expected a regular file"


def on_ranks(size, action):
    """Call ``action(rank, gather)`` in as many threads as there are ranks; return what they return or raise."""
    barrier, values, outcomes = threading.Barrier(size, timeout=60), [None] * size, [None] * size

    def play(rank):
        def gather(value):
            values[rank] = value
            barrier.wait()
            everything = list(values)
            barrier.wait()
            return everything

        try:
            outcomes[rank] = action(rank, gather)
        except MpidlError as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize(("ranks", "file"), list(zip([1, 2, 3, 7, 3], FILES, strict=True)))
def test_ranks_share_the_work_and_take_the_same(run, monkeypatch, ranks, file):
    read, examine = [], integrity.examine
    monkeypatch.setattr(integrity, "examine", lambda path: read.append(path) or examine(path))
    newest, older = run / "checkpoints" / "42", run / "checkpoints" / "30"
    assert on_ranks(ranks, lambda rank, gather: newest_good(run, rank, gather)) == [(newest, [])] * ranks
    assert sorted(path.name for path in read) == sorted(["index.h5"] * ranks + FILES[1:])
    os.truncate(newest / file, 600)
    (first, lines), *rest = on_ranks(ranks, lambda rank, gather: newest_good(run, rank, gather))
    assert (first, len(lines)) == (older, 1)
    assert file in lines[0]
    assert all(outcome == (first, lines) for outcome in rest)


def test_the_first_rank_alone_lists_the_checkpoints(run, monkeypatch):
    listed = []
    monkeypatch.setattr(checkpoints, "steps", lambda path: listed.append(path) or [30])
    outcomes = on_ranks(3, lambda rank, gather: newest_good(run, rank, gather))
    assert outcomes == [(run / "checkpoints" / "30", [])] * 3
    assert listed == [run / "checkpoints"]


def test_every_rank_raises_the_error_of_one(run):
    shard = run / "checkpoints" / "42" / "shard-1.h5"
    shard.unlink()
    shard.symlink_to(shard)
    errors = on_ranks(3, lambda rank, gather: newest_good(run, rank, gather))
    assert [str(error) for error in errors] == [f"{shard}: can't be read: a link, expected a regular file"] * 3


def test_an_index_is_not_written_over_a_file_without_seal(tmp_path):
    unfinished = scratch(tmp_path, 42)
    save_shard(unfinished, 0, Range(0, LAYOUT.size), {"parameters": np.zeros(LAYOUT.size), "clock": np.array(1)})
    with create(unfinished / OTHER):
        pass
    with pytest.raises(MpidlError, match=r"replica-0.h5 isn't sealed"):
        save_index(unfinished, CheckpointIndex(LAYOUT, 1, POSITION, "", "0.0.1", {}, [OTHER]))
