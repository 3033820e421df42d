"""What a configuration says of a virtual cluster."""

from mpidl.config import from_dict
from mpidl.runs.simulate import simulate


def test_fetches_of_a_virtual_cluster_follow_their_pushes_unless_they_go_through_windows(tmp_path):
    def seconds(transport):
        table = {
            "run": {"steps": 10, "dir": str(tmp_path / transport)},
            "data": {"source": "digits"},
            "model": {"layer": [{"type": "dense", "units": 8000}, {"type": "dense", "units": 10}]},
            "topology": {"transport": transport},
            "virtual": {"compute": 0.01, "bandwidth": 1e7},
            "device": {"kind": "cpu"},
        }
        return simulate(from_dict(table), 1)["seconds"]

    # Most of a step of 2.4 MB is the network's.
    assert seconds("windows") > 1.4 * seconds("auto")
