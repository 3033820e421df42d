"""Pages in a browser: nothing is asked of the network, all plots have points, and they can be used. ``make browser``.

It needs the package playwright, and Chromium: that of the variable CHROMIUM, or /usr/bin/chromium.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs_by_hand import make, many, usual
from test_pages import CONFIG, HOSTILE, LONG, SHOWN, STATUS, SUMMARY, event

import mpidl
from mpidl import page

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`, and Chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=f"needs Chromium; {CHROMIUM} is none"),
]

JOB = """
[run]
report = 0.2
epochs = 20
[data]
source = "digits"
batch = 32
portion = 32
validation = 0.1
[[model.layer]]
type = "dense"
units = 10
"""
DOWNPOUR = '[algorithm]\nname = "downpour"\n[debug]\ngradient_seconds = 0.005\nslow_worker = 1\nslow_factor = 4.0\n'
VIRTUAL = '[virtual]\ncompute = "jitter:0.01:0.3"\nlatency = 0.0001\nservice = 0.00001\nbandwidth = 1e9\n'
#: Widths of a desk's screen and of a telephone's, in pixels.
WIDE, NARROW = 1280, 400


def command(*words):
    return [sys.executable, "-m", "mpidl", *map(str, words)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the directory of real runs: resumed after a kill, sandblaster, thousand, and empty."""
    directory = tmp_path_factory.mktemp("runs")
    for name, text in (
        ("resumed", JOB + DOWNPOUR),
        ("sandblaster", JOB + '[algorithm]\nname = "sandblaster"\n'),
        ("thousand", JOB.replace("report = 0.2", "report = 0.001") + DOWNPOUR.partition("[debug]")[0] + VIRTUAL),
    ):
        (directory / f"{name}.toml").write_text(text.replace("[run]", f'[run]\ndir = "{directory}"'))
    first = subprocess.Popen(command("train", directory / "resumed.toml", "--set", "checkpoint.every=0.5"), text=True)
    records = directory / "resumed" / "metrics.jsonl"
    while first.poll() is None and (not records.exists() or records.read_bytes().count(b"\n") < 10):
        time.sleep(0.05)
    first.kill()
    first.wait()
    subprocess.run(command("train", "--resume", directory / "resumed", "-n", 4), check=True)
    subprocess.run(command("train", directory / "sandblaster.toml", "-n", 4), check=True)
    subprocess.run(command("simulate", directory / "thousand.toml", "--replicas", 1000), check=True)
    make(directory / "empty")
    (directory / "virtual" / "thousand").rename(directory / "thousand")
    return directory


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """An open page, with what it asked for and complained of."""

    def __init__(self, browser, file, width=WIDE, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("console", self._console)
        self.page.goto(Path(file).as_uri())
        self.page.add_script_tag(path=str(Path(__file__).with_name("browser.js")))
        if self.page.query_selector(".card"):
            self.page.wait_for_function("document.body.dataset.drawn === 'true'")

    def _console(self, message):
        # Only the tests themselves read canvases.
        if message.type in ("error", "warning") and "getImageData" not in message.text:
            self.complaints.append(message.text)

    def drawn(self):
        """Return the number of coloured pixels of each plot, once all have some or a while has passed."""
        for _ in range(100):
            found = self.page.evaluate("coloured()")
            if all(found):
                break
            self.page.wait_for_timeout(100)
        return found

    def close(self):
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith("data:")] == self.requests[:1]


@pytest.fixture
def opened(browser, tmp_path):
    """Return a function that opens the page of runs."""
    pages = []

    def open_page(*directories, **options):
        file = tmp_path / "page.html"
        page.write([mpidl.open(each) for each in directories], file, force=True)
        pages.append(Opened(browser, file, **options))
        return pages[-1]

    yield open_page
    for each in pages:
        each.close()


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("names", ["resumed", "sandblaster", "thousand", "resumed thousand"])
def test_all_plots_have_points(runs, opened, names, scheme, width):
    found = opened(*[runs / name for name in names.split()], width=width, scheme=scheme)
    pixels = found.drawn()
    assert len(pixels) >= 8
    assert min(pixels) > 20, pixels
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_empty_run(runs, opened):
    found = opened(runs / "empty")
    assert found.page.query_selector(".card") is None
    assert "killed before its first report" in found.page.inner_text("main")


def test_everything_is_zoomed_together_and_back(tmp_path, opened):
    found = opened(make(tmp_path / "run", usual(40)))
    found.drawn()
    before = found.page.evaluate("ranges()")
    assert len({tuple(each) for each in before}) == 1
    box = found.page.query_selector(".card").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    found.page.mouse.move(x, y)
    found.page.mouse.down()
    found.page.mouse.move(x + 90, y + 40, steps=5)
    found.page.mouse.up()
    found.page.wait_for_timeout(300)
    after = found.page.evaluate("ranges()")
    assert len({tuple(each) for each in after}) == 1
    assert before[0][0] < after[0][0] < after[0][1] < before[0][1]
    assert min(found.drawn()) > 0
    found.page.click("[data-axis=time]")
    assert found.page.evaluate("ranges()")[0] == pytest.approx([-0.6, 40.6], abs=0.1)
    assert min(found.drawn()) > 20


def test_the_mouse_shows_values(tmp_path, opened):
    found = opened(make(tmp_path / "run", usual(40)))
    found.drawn()
    box = found.page.query_selector(".card").bounding_box()
    for step in range(6):
        found.page.mouse.move(box["x"] + box["width"] / 2 + step, box["y"] + box["height"] / 2)
    found.page.wait_for_timeout(500)
    shown = found.page.evaluate("tooltips()")
    assert "training: 0.0" in shown
    assert {"samples", "epochs", "s"} <= set(shown.replace(",", " ").split())


def test_legends_hide_curves(tmp_path, opened):
    found = opened(make(tmp_path / "a", usual()), make(tmp_path / "b", usual(30)))
    before = found.drawn()
    found.page.click("[data-run='1']")
    found.page.wait_for_timeout(500)
    after = found.page.evaluate("coloured()")
    assert all(0 < now < then for now, then in zip(after, before, strict=True)), (before, after)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_losses_can_be_drawn_on_a_logarithmic_axis(tmp_path, opened, width):
    rows = [each | {"train_loss": 10.0**-place} for place, each in enumerate(usual())]
    page = opened(make(tmp_path / "run", rows), width=width)
    linear = page.drawn()[0]
    page.page.click("[data-scale=Log]")
    scale = (
        "(() => { const {y_scale, y_range} = mpidl.figures()[0]; return [y_scale.type, y_range.start, y_range.end] })()"
    )
    assert page.page.evaluate(scale) == ["LogScale", pytest.approx(1e-19, rel=0.2), pytest.approx(1.1)]
    page.page.wait_for_timeout(300)
    assert page.drawn()[0] > linear / 2
    page.page.click("[data-scale=Linear]")
    assert page.page.evaluate(scale)[0] == "LinearScale"


def test_no_label_is_cut_on_a_telephone(tmp_path, opened):
    shares = {"computing": 0.5, "rest": 0.5}
    role = "worker 1 of a replica, partition 2 of 4"
    ranks = [{"rank": 1, "role": role, "host": "a-long-name.cluster.example.org", "samples": 5, "shares": shares}]
    rows = [each | {"test_of_a_metric_with_a_long_name": 0.5} for each in usual()]
    page = opened(make(tmp_path / "run", rows, status={"ranks": ranks}), width=NARROW)
    cut = "each => each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1"
    found = f"[...document.querySelectorAll('button, dt, h3, .bars span')].filter({cut}).map(each => each.textContent)"
    assert page.page.evaluate(found) == []
    assert page.page.evaluate("document.documentElement.scrollWidth") == NARROW


def test_plots_follow_the_colours_of_the_page_and_print_as_light_ones(tmp_path, opened):
    found = opened(make(tmp_path / "run", usual()))
    light = found.page.evaluate("colours()")
    found.page.emulate_media(color_scheme="dark")
    found.page.wait_for_timeout(300)
    dark = found.page.evaluate("colours()")
    assert all(one != other for one, other in zip(light, dark, strict=True))
    found.page.evaluate("matchMedia('print').addEventListener('change', () => { window.printed ??= colours(); })")
    assert len(found.page.pdf()) > 20_000
    assert found.page.evaluate("printed") == light
    assert found.page.evaluate("colours()") == dark


def test_hostile_names_are_shown_and_not_executed(tmp_path, opened):
    named = {f"test_{HOSTILE}": 1.0, f"test_{LONG}": 2.0}
    ranks = [
        {"rank": 1, "role": f"worker {HOSTILE}", "host": HOSTILE + LONG, "samples": 1, "shares": {"computing": 1.0}}
    ]
    runs = [
        make(
            tmp_path / name.replace("/", "|"),
            [each | named for each in usual()],
            [event("drop", 3.0, worker=HOSTILE), event("failure", 4.0, cause=HOSTILE), event(HOSTILE, 5.0)],
            SUMMARY | {"command": HOSTILE, "hosts": {HOSTILE: 1}, "algorithm": HOSTILE},
            {"ranks": ranks},
            CONFIG.replace('name = "hand"', f"name = {HOSTILE!r}".replace("\\x1b", "").replace("\\'", "")),
        )
        for name in (HOSTILE, LONG[:200])
    ]
    for directories in (runs[:1], runs[1:], runs):
        found = opened(*directories, width=NARROW)
        assert min(found.drawn()) > 0
        box = found.page.query_selector("#plot-1").bounding_box()
        found.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        found.page.wait_for_timeout(300)
        assert SHOWN.replace("/", "|") in found.page.inner_text("body") or LONG[:200] in found.page.inner_text("body")
        assert found.page.evaluate("document.querySelectorAll('img').length") == 0
        assert found.page.evaluate("document.documentElement.scrollWidth") <= NARROW


def test_a_long_run_opens_soon(tmp_path, opened):
    run = make(tmp_path / "run", many(100_000), status=STATUS)
    found = opened(run)
    took = found.page.evaluate("performance.getEntriesByName('drawn')[0].startTime") / 1000
    assert took <= 2 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert min(found.drawn()) > 20
