"""Probes between two real ranks."""

import pytest

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def pair():
    """Return the first and the last rank of the test's world, as the doctor takes them; None on the others."""
    from mpi4py import MPI

    from mpidl.doctor.windows import Pair

    world = MPI.COMM_WORLD
    chosen = world.rank in (0, world.size - 1)
    comm = world.Split(0 if chosen else MPI.UNDEFINED)
    yield Pair(comm) if chosen else None
    world.Barrier()
    if chosen:
        comm.Free()


@pytest.mark.parametrize("way", ["allocate", "create", "messages"])
def test_windows_and_messages_of_this_machine_are_right(pair, way):
    from mpidl.doctor import windows
    from mpidl.doctor.examination import Verdict

    if pair is not None:
        assert windows.memory(pair, way).found == "unified"
        assert windows.order(pair, way).verdict is Verdict.OK


@pytest.mark.parametrize("way", ["allocate", "create"])
def test_a_probe_keeps_what_it_puts_until_it_has_left(pair, monkeypatch, way):
    import weakref

    from mpidl.rma.probes import WindowProbe
    from mpidl.rma.windows import Window

    put, fence, leaving, lost = Window.put, Window.fence, [], []

    def watched_put(self, values, *place, **options):
        put(self, values, *place, **options)
        leaving.append(weakref.ref(values))

    def watched_fence(self, rank):
        lost.extend(values for values in leaving if values() is None)
        fence(self, rank)
        leaving.clear()

    if pair is not None:
        monkeypatch.setattr(Window, "put", watched_put)
        monkeypatch.setattr(Window, "fence", watched_fence)
        with WindowProbe(pair.comm, 5, way) as probe:
            probe.overtakes(3)
        assert not lost


@pytest.mark.parametrize("way", ["allocate", "messages"])
@pytest.mark.parametrize("wrong", ["put", "get"])
def test_values_that_change_on_their_way(pair, monkeypatch, wrong, way):
    from mpidl.doctor import windows
    from mpidl.doctor.examination import Verdict
    from mpidl.rma.messages import MessageWindow
    from mpidl.rma.windows import Window

    kind = MessageWindow if way == "messages" else Window
    transfer = getattr(kind, wrong)

    def spoil(self, values, rank, name, offset=0):
        transfer(self, values[:-1], rank, name, offset)

    if pair is not None:
        monkeypatch.setattr(kind, wrong, spoil)
        assert windows.memory(pair, way).verdict is Verdict.FAILED


@pytest.mark.parametrize(("bandwidth", "remedy"), [(1e12, 'leave algorithm.wire = "fp32"'), (1e6, "`mpidl plan`")])
def test_formats_shorten_exchanges_where_the_network_is_slow(pair, monkeypatch, bandwidth, remedy):
    from mpidl.doctor import ranks, windows

    if pair is not None:
        monkeypatch.setattr(windows, "sends", lambda pair: (0.0, bandwidth))
        finding = ranks.wire_formats(pair)
        assert all(f" as {name}" in finding.found for name in ("fp32", "bf16", "int8", "onebit"))
        assert remedy in finding.remedy


def test_an_error_of_the_origin_reaches_the_target(pair):
    if pair is not None:
        with pytest.raises(Exception, match="network is down"):
            pair.measure(lambda: (_ for _ in ()).throw(OSError("network is down")))
        assert pair.measure(lambda: 7) == 7


def test_an_error_of_the_last_rank_fails_the_probe_on_both(pair, capsys):
    from mpidl.doctor.examination import Examination, Finding

    if pair is not None:
        examination = Examination(speaks=pair.origin)
        examination.comm = pair.comm

        def probe():
            if not pair.origin:
                raise OSError("no memory")
            return Finding("fine")

        assert not examination.check("windows", probe)
        assert examination.end() == int(pair.origin)
        assert ("OSError: no memory (on the last rank)" in capsys.readouterr().out) == pair.origin


def test_bells_between_ranks_of_one_node(pair):
    from mpidl.doctor import windows

    if pair is not None:
        assert "wakes another" in windows.doorbells(pair, rounds=3).found


def test_bells_that_do_not_ring(pair, monkeypatch):
    from mpidl.doctor import windows
    from mpidl.doctor.examination import Verdict
    from mpidl.rma.doorbells import Doorbells

    if pair is not None:
        monkeypatch.setattr(Doorbells, "ring", lambda self, rank: None)
        assert windows.doorbells(pair, rounds=1, patience=0.05).verdict is Verdict.FAILED


def test_what_is_measured_is_kept(comm, pair, tmp_path, monkeypatch):
    if comm.size > 3:
        pytest.skip("takes 2 ranks, or 3")
    from mpidl.config.measured import read
    from mpidl.doctor import measuring

    monkeypatch.setattr(measuring, "ROUNDS", 1)
    if pair is not None:
        path, kept = tmp_path / "measured.toml", {}
        assert measuring.node(pair, "allocate", kept).found.startswith("gradients: dense ")
        assert "B/s, " in measuring.link(pair, "allocate", kept).found
        measuring.save(pair, path, kept)
        if pair.origin:
            found = read(path)
            assert found.between is None
            assert set(found.node.flops_of) == set(measuring.PRODUCTS)
            assert {"activation", *found.node.elements_of} == set(measuring.ELEMENTWISE)
            assert min(found.node.elements, found.node.parameter_bandwidth, *found.node.elements_of.values()) > 1e6
            assert min(found.node.flops, found.node.update, found.within.send_bandwidth) > 1e7
            assert 0 < found.within.send_latency < 1
