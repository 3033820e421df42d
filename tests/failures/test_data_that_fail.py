"""Data of one's own that fail in a worker process: the job ends at once with one line, and leaves no process behind."""

import time
from pathlib import Path

SOURCE = """
import os, signal, sys, time
import numpy as np
import mpidl

class Data:
    def __init__(self, breaks):
        self.breaks = breaks

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.breaks and index == 50 and os.path.exists("runs/run/checkpoints/0"):
            {what}
        return np.ones(3, np.float32), index % 2

def main():
    network = mpidl.Network([mpidl.Dense(2)], (3,))
    mpidl.train(network, mpidl.Indexed(Data(True), Data(False), workers=2), epochs=300, batch=4, portion=8)

{start}
"""
GUARDED = 'if __name__ == "__main__":\n    main()'


def processes(directory):
    """Return the processes that run in a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += [entry.name] if (entry / "cwd").resolve() == directory else []
        except OSError:
            continue
    return found


def test_a_job_whose_data_fail_ends(script, tmp_path):
    ended = script(SOURCE.format(what="os.kill(os.getpid(), signal.SIGKILL)", start=GUARDED), ranks=3)
    assert ended.returncode != 0
    said = [text for text in ended.stderr.splitlines() if "data:" in text]
    assert len(said) == 1, ended.stderr
    assert said[0].startswith("mpidl: rank ")
    assert "was killed by signal 9 at training sample 50" in said[0]
    assert "Traceback" not in ended.stderr
    until = time.monotonic() + 300
    while left := processes(tmp_path):
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_a_script_that_its_workers_would_run_again_is_one_line(script):
    ended = script(SOURCE.format(what="pass", start="main()"))
    assert ended.returncode != 0
    last = ended.stderr.splitlines()[-1]
    assert last.endswith(
        "data.workers: worker processes can't start, expected "
        '`if __name__ == "__main__":` around mpidl.train in the script, which they import'
    ), ended.stderr
