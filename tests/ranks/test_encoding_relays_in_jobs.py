"""A whole job with a relay that encodes: it learns, and as many bytes travel as the formats say."""

import json

from mpidl.parameters import Range
from mpidl.relays.residuals import saved_residuals
from mpidl.storage.checkpoint import Checkpoint
from mpidl.wire import encoded_bytes, parse

#: 64-33-10, with two parameters and two statistics of each of 33 units.
SIZE, STATISTICS = 65 * 33 + 4 * 33 + 34 * 10, [Range(65 * 33 + 2 * 33, 65 * 33 + 4 * 33)]
CONFIG = """
run = {name = "digits", epochs = 8}
data = {source = "digits", batch = 32}
algorithm = {name = "downpour", wire = "onebit", wire_fetch = "int8"}
server = {rule = "sgd", rate = 0.05}
topology = {relay = true}
[[model.layer]]
type = "dense"
units = 33
[[model.layer]]
type = "batch_normalisation"
activation = "relu"
[[model.layer]]
type = "dense"
units = 10
"""


def test_a_job_learns_from_encoded_sums(mpidl, tmp_path):
    """Of two nodes, the first has coordinator, server and two workers, the second a relay with two workers."""
    (tmp_path / "digits.toml").write_text(CONFIG)
    done = mpidl("train", "digits.toml", "-n", 7, MPIDL_RANKS_PER_NODE="4")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())
    assert summary["relays"] == 1
    assert summary["test_accuracy"] > 0.88
    received = sum(summary["staleness_histogram"])
    pushed, fetched = (encoded_bytes(parse(wire), SIZE, "float32", STATISTICS) for wire in ("onebit", "int8"))
    assert received <= summary["pushes"] == 8 * 45
    # Workers beside the server push and fetch the whole vector, as the relay does at its first fetch.
    near, rest = divmod(summary["bytes_pushed"] - received * pushed, 4 * SIZE - pushed)
    assert rest == 0
    assert 0 < near < received
    assert summary["bytes_fetched"] == (near + 1) * 4 * SIZE + (received - near - 1) * fetched
    (residual,) = saved_residuals(Checkpoint(tmp_path / "runs" / "digits" / "checkpoints" / "360"))
    assert residual.shape == (SIZE,)
    assert residual.any()
    assert not residual[slice(*STATISTICS[0])].any()
