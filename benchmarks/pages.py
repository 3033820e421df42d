"""The page of a long run: seconds to make it, its size, and seconds until a browser has drawn it.

    pip install 'mpidl[report]' playwright
    python benchmarks/pages.py [--records 100000] [--rounds 3]

Makes the records of a run on 1000 ranks with noise in every figure, and calls ``mpidl report`` as a command. Opens the
page in Chromium, that of the variable CHROMIUM or /usr/bin/chromium, if it is there and playwright is installed. Prints
the medians, and writes them to results/pages.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from harness import parse, save, table

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
CONFIG = '[run]\nname = "long"\n[data]\nsource = "digits"\n[[model.layer]]\ntype = "dense"\nunits = 10\n'
CLASSES = 16


def make(run: Path, records: int) -> None:
    """Make the directory of a run."""
    random = np.random.default_rng(0)
    (run / "config.toml").write_text(CONFIG)
    noise = random.random((records, 8)).round(6).tolist()
    staleness = np.cumsum(random.integers(0, 9, (records, CLASSES)), axis=0).tolist()
    with (run / "metrics.jsonl").open("w") as file:
        for row, (a, b, c, d, e, f, g, h) in enumerate(noise, 1):
            record = {
                "time": 2.0 * row, "samples": 1280 * row, "epoch": row / 50, "train_loss": a + 5 / row,
                "validation_loss": b + 5 / row, "validation_accuracy": c, "test_loss": None, "test_accuracy": None,
                "samples_per_second": 600 + d, "server_load": e,
                "staleness": {"mean": f, "p50": 1, "p99": 9, "max": 15}, "staleness_histogram": staleness[row - 1],
                "pushes": 10 * row, "fetches": 10 * row, "bytes_pushed": 10**6 * row, "bytes_fetched": 10**6 * row,
                "bytes_moved": 0, "dropped": 0,
                "timing": {"compute": a, "compute_deviation": b, "service": c, "bandwidth": 1e9},
                "shares": {"computing": 0.5, "pushing": 0.1, "fetching": 0.1, "waiting": 0.2, "rest": 0.1},
                "server_rate": 0.01 * g, "worker_rate": None, "gradient_norm": h, "waiting": f, "unix_time": 1e9 + row,
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")


def make_page(run: Path) -> tuple[float, float]:
    """Make the page by the command, and return the seconds that it took, and those in which it computed."""
    start, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "mpidl", "report", str(run)], check=True, stdout=subprocess.DEVNULL)
    now = os.times()
    computed = now.children_user + now.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, computed


def open_page(page: Path) -> float | None:
    """Return the seconds until a browser has drawn a page; None if there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None
    if not os.access(CHROMIUM, os.X_OK):
        return None
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.goto(page.as_uri())
        tab.wait_for_function("document.body.dataset.drawn === 'true'")
        seconds: float = tab.evaluate("performance.getEntriesByName('drawn')[0].startTime") / 1000
        browser.close()
        return seconds


def main() -> None:
    """Make and open the page, print the medians and save them."""
    parser = argparse.ArgumentParser(description="The page of a long run.")
    parser.add_argument("--records", type=int, default=100_000, help="records of the run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="timings of each (default: %(default)s)")
    options = parse(parser, records=1000, rounds=1)
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory)
        make(run, options.records)
        made = [make_page(run) for _ in range(options.rounds)]
        page = run / "report.html"
        size = page.stat().st_size
        opened = [] if options.quick else [open_page(page) for _ in range(options.rounds)]
    known = [each for each in opened if each is not None]
    seconds, computed = (median(each) for each in zip(*made, strict=True))
    row = {
        "records": options.records,
        "made in s": seconds,
        "of these computing": computed,
        "MB": size / 1e6,
        "drawn in s": median(known) if known else None,
    }
    print(table([row]))
    print(f"wrote {save('pages', [row])}")


if __name__ == "__main__":
    main()
