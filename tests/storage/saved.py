"""A small checkpoint of which every value is known."""

import numpy as np

from mpidl.parameters import Layout, shards
from mpidl.storage.files import scratch
from mpidl.storage.index import save_index
from mpidl.storage.position import Position
from mpidl.storage.seal import create, seal
from mpidl.storage.shard_writer import save_shard

OTHER = "replica-0.h5"
LAYOUT = Layout([("0-conv/weight", (3, 2, 5, 7)), ("0-conv/bias", (7,)), ("scale", ()), ("1-dense/weight", (11, 3))])
POSITION = Position(42, 1337, 1.5, 9, [(7, 2), (8, 0)])


def save(directory, layout=LAYOUT, servers=3, position=POSITION, dtype="float32", seed=0):
    """Write a checkpoint of which every value is known; return the vectors."""
    random = np.random.default_rng(seed)
    vectors = {name: random.normal(size=layout.size).astype(dtype) for name in ("parameters", "rule/sum")}
    unfinished = scratch(directory, position.step)
    for number, part in enumerate(shards(layout.size, servers)):
        held = {name: vector[part.start : part.stop] for name, vector in vectors.items()}
        for _ in save_shard(unfinished, number, part, held, clock=100 + number):
            pass
    with create(unfinished / OTHER) as file:
        file["local"] = vectors["parameters"] * 2
    seal(unfinished / OTHER)
    save_index(unfinished, layout, servers, position, "[run]\n", "1.2.3", [OTHER])
    return vectors
