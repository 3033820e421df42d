"""A small checkpoint of which every value is known."""

import numpy as np

from mpidl.parameters import Layout, shards
from mpidl.storage.files import scratch
from mpidl.storage.integrity import create, seal
from mpidl.storage.position import Position
from mpidl.storage.writer import CheckpointIndex, save_index, save_shard

OTHER = "replica-0.h5"
LAYOUT = Layout([("0-conv/weight", (3, 2, 5, 7)), ("0-conv/bias", (7,)), ("scale", ()), ("1-dense/weight", (11, 3))])
POSITION = Position(42, 1337, 1.5, 9, [(7, 2), (8, 0)])


def save(directory, layout=LAYOUT, servers=3, position=POSITION, seed=0):
    """Save a checkpoint; return its vectors, in its layout."""
    unfinished = scratch(directory, position.step)
    vectors = save_files(unfinished, layout, servers, seed)
    save_index(unfinished, CheckpointIndex(layout, servers, position, "[run]\n", "0.0.1", {}, [OTHER]))
    return vectors


def save_files(unfinished, layout=LAYOUT, servers=3, seed=0):
    """Write all files but the index; return the vectors."""
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    vectors = {name: random.normal(size=layout.size).astype(np.float32) for name in ("parameters", "rule/sum")}
    for number, part in enumerate(shards(layout.size, servers)):
        held = {name: vector[part.start : part.stop] for name, vector in vectors.items()}
        save_shard(unfinished, number, part, held | {"clock": np.array(100 + number)})
    with create(unfinished / OTHER) as file:
        file["local"] = vectors["parameters"] * 2
    seal(unfinished / OTHER)
    return vectors
