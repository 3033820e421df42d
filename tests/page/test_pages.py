"""What a page says of runs, and which files it replaces; no browser is needed."""

import base64
import gzip
import json
import re
import sys
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from runs_by_hand import CONFIG, event, make, many, record, usual

import mpidl
from mpidl import cli, page
from mpidl.errors import UsageError
from mpidl.page.course import RunCourse
from mpidl.page.curves import plots
from mpidl.page.facts import bars
from mpidl.page.writing import html

SUMMARY = {
    "algorithm": "downpour", "ranks": 4, "servers": 1, "replicas": 2, "samples": 2000, "seconds": 20.0, "epochs": 2.0,
    "samples_per_second": 100.0, "test_accuracy": 0.8, "command": "mpidl train hand.toml -n 4", "version": "9.9",
    "hosts": {"left": 3, "right": 1}, "mpi": "Some MPI 1.0", "job_id": None, "seed": 3, "date": "2026-01-01T00:00:00",
}  # fmt: skip
SHARES = {"computing": 0.6, "pushing": 0.1, "fetching": 0.1, "waiting": 0.1, "rest": 0.1}
STATUS = {
    "ranks": [
        {"rank": 0, "role": "coordinator", "host": "left", "samples": None, "shares": None},
        {"rank": 1, "role": "server 0", "host": "left", "samples": None, "shares": {"computing": 0.2, "rest": 0.8}},
        {"rank": 2, "role": "worker 0", "host": "left", "samples": 1600, "shares": SHARES},
        {"rank": 3, "role": "worker 1", "host": "right", "samples": 400, "shares": SHARES},
    ]
}
#: Names that would run a script, end an attribute or move a terminal's cursor, if they weren't only shown.
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[2J{{ 7 * 7 }}$$x^2$$ &amp; </style>"
SHOWN = HOSTILE.replace("\x1b", "\\x1b")
LONG = "long" * 75


class Text(HTMLParser):
    """The text of a page, without its scripts and styles, its tags and the values of its attributes."""

    def __init__(self, html):
        super().__init__()
        self.text, self.tags, self.within = "", [], None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.within = tag

    def handle_endtag(self, tag):
        self.within = None

    def handle_data(self, data):
        if self.within not in ("script", "style"):
            self.text += data


def make_page(directory, **runs):
    """Return the page of runs, by name the arguments of `runs_by_hand.make`."""
    found = [mpidl.open(make(directory / name, **each)) for name, each in runs.items()]
    page.write(found, directory / "page.html")
    return (directory / "page.html").read_text()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the page of a run."""
    run = {"records": usual(), "summary": SUMMARY, "status": STATUS, "events": [event("checkpoint", 9.0)]}
    return make_page(tmp_path_factory.mktemp("alone"), hand=run)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return the page of two runs, of which one has hostile names."""
    named = {f"test_{HOSTILE}": 1.0, f"test_{LONG}": 2.0}
    status = {
        "ranks": [{"rank": 1, "role": f"worker {HOSTILE}", "host": HOSTILE + LONG, "samples": 1, "shares": SHARES}]
    }
    config = CONFIG.replace("rate = 0.02", f"rate = 0.5\nnote = {json.dumps(HOSTILE)}")
    of_host = {"command": HOSTILE, "hosts": {HOSTILE: 1, LONG: 2}, "algorithm": HOSTILE, "version": HOSTILE}
    runs = {
        "first": {"records": usual(), "summary": SUMMARY},
        HOSTILE.replace("/", "|"): {
            "records": [each | named for each in usual(40)],
            "summary": SUMMARY | of_host | {"test_accuracy": 0.9},
            "config": config,
            "status": status,
            "events": [event("drop", 3.0, worker=HOSTILE, portions=[1]), event(HOSTILE, 4.0)],
        },
    }
    return make_page(tmp_path_factory.mktemp("together"), **runs)


def document(text):
    """Return the plots on a page: the data of each curve by the name and the place of its plot."""
    found = re.search(r'<script type="application/json" id="[^"]*">(.*?)</script>', text, re.DOTALL)[1]
    (content,) = json.loads(unescape(found)).values()
    assert "bokeh" in text
    return content["roots"]


def curves(figure):
    """Yield the name and the columns of each line of a plot."""
    sources = {}
    for renderer in (each["attributes"] for each in figure["attributes"]["renderers"]):
        source = renderer["data_source"]
        sources[source["id"]] = source = source if "attributes" in source else sources[source["id"]]
        if renderer["glyph"]["name"] == "Line":
            yield renderer["name"], {name: array(each) for name, each in source["attributes"]["data"]["entries"]}


def array(encoded):
    """Return an array as Bokeh writes it; from 3.8 on compressed."""
    content = base64.b64decode(encoded["array"]["data"])
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return np.frombuffer(content, encoded["dtype"])


def titles(html):
    return re.findall(r"<h3[^>]*>(.*?)(?: <small>.*?)?</h3>", html)


def test_a_run(alone):
    found = Text(alone)
    assert titles(alone) == [
        "Loss", "Accuracy", "Learning rate", "Speed", "Load", "Staleness so far", "Traffic", "Staleness of pushes",
        "Over the run",
    ]  # fmt: skip
    assert len(document(alone)) == 9
    for each in ("finished", "downpour, 4 ranks, 1 server, 2 replicas", "0.8", "100samples/s", "20 s", "Some MPI 1.0"):
        assert each in found.text
    assert re.search(r"command\s*mpidl train hand.toml -n 4\s", found.text)
    assert re.search(r"hosts\s*left: 3 ranks, right: 1 rank\s", found.text)
    assert [attributes for tag, attributes in found.tags if tag == "link" or "src" in attributes] == [
        {"rel": "icon", "href": "data:,"}
    ]


def test_keys_that_differ_from_their_defaults_come_first(alone):
    text = Text(alone).text
    assert re.search(r"data\.batch\s*64\s*128\s", text)
    assert re.search(r"server\.rate\s*0\.02\s*0\.01\s", text)
    assert text.index("server.rate") < text.index("keys with their defaults") < text.index("topology.servers")
    assert "run.metrics" in text[text.index("keys with their defaults") :]


def test_ranks_are_bars_with_the_slowest_worker_first(alone):
    assert re.findall(r'<span title="([^"]*\(rank[^"]*)">', alone) == [
        "worker 1 (rank 3)", "worker 0 (rank 2)", "server 0 (rank 1)",
    ]  # fmt: skip
    widths = re.findall(r'<b style="width: ([\d.]+)%', alone)
    assert widths == [*["60.00", "10.00", "10.00", "10.00", "10.00"] * 2, "20.00", "80.00"]


def course(directory, **run):
    return RunCourse(mpidl.open(make(directory / "run", **run)))


def test_of_many_ranks_the_slowest_are_bars_and_the_others_their_mean(tmp_path):
    ranks = [
        {"rank": rank, "role": f"worker {rank}", "host": None, "samples": 5000 - rank, "shares": SHARES}
        for rank in range(1000)
    ]
    found = bars(course(tmp_path, status={"ranks": ranks}))
    assert found[0].label == "worker 999 (rank 999)"
    assert found[-1].label == "960 more workers, on average"
    assert len(found) == 41
    assert dict(found[-1].parts) == pytest.approx({name: 100 * part for name, part in SHARES.items()})


@pytest.mark.parametrize("status", [{"ranks": [{"rank": "x"}]}, {"ranks": 3}, {"ranks": [{"shares": [1]}]}])
def test_a_status_that_is_not_in_order_is_none(tmp_path, status):
    found = bars(course(tmp_path, records=usual(), status=status))
    assert [bar.label for bar in found] == ["workers, on average"]


def test_several_runs(together):
    text = Text(together).text
    differing = text[text.index("Keys that differ") : text.index("epochs", text.index("Keys that differ"))]
    assert re.search(r"server\.rate\s*0\.02\s*0\.5\s", differing)
    assert "data.batch" not in differing
    assert '<td class="best">0.9</td>' in together
    second = SHOWN.replace("/", "|")
    assert [name for name, _ in curves(document(together)[0])] == [
        f"{run}, {kind}" for run in ("first", second) for kind in ("training", "test")
    ]


def test_hostile_names_are_shown(together):
    found = Text(together)
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert sum(tag == "script" for tag, _ in found.tags) == 6
    assert not any(key.startswith("on") for _, attributes in found.tags for key in attributes)
    # The key, the command, the hosts, the version and the event.
    assert found.text.count(SHOWN) >= 5
    assert LONG in found.text
    assert "\x1b" not in together


def test_runs_of_the_same_name_are_told_apart_by_their_directories(tmp_path):
    runs = [mpidl.open(make(tmp_path / parent / "digits")) for parent in ("a", "b")]
    page.write(runs, tmp_path / "page.html")
    text = Text((tmp_path / "page.html").read_text()).text
    assert str(tmp_path / "a" / "digits") in text


def test_a_run_without_records_has_a_page_without_plots(tmp_path):
    html = make_page(tmp_path, hand={"events": [event("failure", 1.0, cause="no memory")]})
    text = Text(html).text
    assert "No record: the run failed before its first report." in text
    assert "rank 0 (coordinator) failed: no memory" in text
    assert "data.batch" in text
    assert len(html) < 50_000


def test_a_sandblaster_run_has_plots_over_iterations(tmp_path):
    rows = [
        record(float(row), 100.0 * row, gradient_norm=0.1,
               iteration={"number": row, "objective": 1 / row, "step": 1.0, "evaluations": 2})
        for row in range(1, 9)
    ]  # fmt: skip
    found = plots([course(tmp_path, records=rows)])
    assert [plot.title for plot in found][:2] == ["Objective", "Loss"]
    assert {"Norm of the gradient", "Step length", "Evaluations per iteration"} <= {plot.title for plot in found}
    assert found[0].curves[0].axes["iteration.number"].tolist() == [*range(1, 9)]


def test_bytes_that_are_no_text_are_shown(tmp_path):
    page.write([mpidl.open(make(tmp_path / "r\udcff"))], tmp_path / "page.html")
    assert "r\\udcff" in Text((tmp_path / "page.html").read_text()).text


def test_many_records_have_few_points_with_all_peaks(tmp_path):
    rows = many(5000)
    rows[1234]["train_loss"] = 77.0
    training, evaluated = plots([course(tmp_path, records=rows)])[0].curves
    assert training.values.max() == 77.0
    assert training.values.min() == min(row["train_loss"] for row in rows)
    assert 1400 < len(evaluated.values) < 2900


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make(tmp_path / "runs" / name)
    assert cli.main(["report", "runs/a"]) == 0
    assert capsys.readouterr().out == "runs/a/report.html\n"
    assert cli.main(["report", "runs/a", "runs/b"]) == 0
    assert capsys.readouterr().out == "report.html\n"
    assert cli.main(["report", "runs/a", "-o", "page.html"]) == 0
    assert cli.main(["report", "runs/b", "-o", "page.html"]) == 0  # an earlier page
    assert "<h1>b " in (tmp_path / "page.html").read_text()


def test_a_file_that_is_no_page_stays_unless_it_is_asked_for(tmp_path, capsys):
    run, file = make(tmp_path / "run"), tmp_path / "thesis.html"
    file.write_text("<html>mine")
    assert cli.main(["report", str(run), "-o", str(file)]) == 2
    expected = f"mpidl: {file}: exists and is no page of mpidl report, expected --force to replace it\n"
    assert capsys.readouterr().err == expected
    assert file.read_text() == "<html>mine"
    assert cli.main(["report", str(run), "-o", str(file), "--force"]) == 0
    assert "<h1>run " in file.read_text()


def test_what_is_no_run(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "expected the directory of a run" in capsys.readouterr().err


def test_without_bokeh_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(UsageError, match=r"^bokeh is not installed, expected `pip install 'mpidl\[report\]'`$"):
        page.write([mpidl.open(make(tmp_path / "run"))], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("events", [[], [event("resume", 5.0, step=4)]])
def test_what_counts_since_a_resumption_says_so(tmp_path, events):
    directory = make(tmp_path / "run", usual(), events, status=STATUS)
    text = html([mpidl.open(directory)])
    assert ("<h2>Where each rank's time went, since the run was resumed</h2>" in text) == bool(events)
    assert text.count("since the resume</small>") == 3 * len(events)


def test_the_page_has_one_section_of_events_and_says_what_rest_is(tmp_path):
    events = [event("failure", 5.5, host="h", pid=3, signal=None)]
    runs = [mpidl.open(make(tmp_path / name, usual(), events, status=STATUS)) for name in ("a", "b")]
    for text in (html(runs[:1]), html(runs)):
        assert len(re.findall(">Events<", text)) == 1
        assert text.count("Rest: all else") == 1
        assert text.count("data-scale=") == 2
    tiles = re.findall('<div( class="main")?><dt title="(.*?)">', html(runs[:1]))
    assert {name for main, name in tiles if main} == {"test accuracy", "test loss", "training loss"}
    other = mpidl.open(make(tmp_path / "c", [{"samples": 1, "time": 1.0, "pushes": 1, "server_load": 0.5}]))
    assert "data-scale=" not in html([other])


def test_stopped_gradients_and_the_time_that_they_save(tmp_path):
    summary = {"gradients_stopped": 12, "seconds_saved": 75.0}
    text = html([mpidl.open(make(tmp_path / "run", usual(), summary=summary))])
    assert re.search(r'<dt title="gradients stopped">.*?12.*?75 s saved', text, re.DOTALL)
    assert "gradients stopped" not in html([mpidl.open(make(tmp_path / "other", usual(), summary={}))])
