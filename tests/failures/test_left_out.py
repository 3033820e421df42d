"""A job with a relay is resumed on other ranks: what the relay's encodings had left out of pushes is not lost."""

import subprocess
import sys
from dataclasses import replace

import pytest
from counting import ENCODED, NAME, Case, examine


@pytest.mark.long
def test_a_relay_goes_on_with_what_relays_had_left_out(tmp_path, bare_environment):
    case = Case("relay", {"name": "downpour", "wire": "topk:0.1"}, epochs=1, padding=3000, pace=0.001, **ENCODED)
    config = case.write(tmp_path)
    environment = bare_environment | case.environment(tmp_path, replicas=4)
    for servers, *words in ((1, config), (2, "--resume", f"runs/{NAME}", "--set", "run.epochs=2")):
        ranks = 1 + servers + 4 + case.relays
        words += ["-n", ranks, "--set", f"topology.servers={servers}"]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mpidl", "train", *map(str, words)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "relay 0" in done.stderr
    last = tmp_path / "runs" / NAME / "checkpoints" / str(2 * case.steps)
    assert examine(last, replace(case, epochs=2), whole=True).fault == ""
