"""What modules change themselves, on ranks: every rank and every checkpoint has what the first worker has."""

import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from changing_modules import (  # noqa: E402
    BATCH,
    RATE,
    Anew,
    Clamped,
    Margins,
    Odd,
    Private,
    Spectral,
    Sums,
    TeacherByData,
    plain,
    same,
    tensors_of,
)  # fmt: skip
from mpidl.storage.checkpoint import Checkpoint  # noqa: E402

pytestmark = pytest.mark.mpi(min_size=4)


class Everything(torch.nn.Module):
    """The sum of modules that change in all ways."""

    def __init__(self):
        super().__init__()
        self.kinds = torch.nn.ModuleList([each() for each in (Anew, TeacherByData, Sums, Private, Odd)])

    def forward(self, images):
        return sum(kind(images) for kind in self.kinds) / len(self.kinds)


def train(path, module, loss, **options):
    options = {"dir": str(path), "batch": BATCH, "deterministic": True} | options
    if options.get("algorithm", mpidl.Downpour()).default_rule is not None:
        options["rule"] = mpidl.Sgd(RATE)
    mpidl.train(module, mpidl.Digits(), loss=loss, **options)
    return tensors_of(module, *([loss] if isinstance(loss, torch.nn.Module) else []))


def test_one_worker_is_a_plain_loop(comm, shared_path):
    servers = comm.size - 2
    expected = plain(Everything(), Margins())
    same(train(shared_path, Everything(), Margins(), steps=20, servers=servers, name="through"), expected)
    train(shared_path, Everything(), Margins(), steps=9, servers=servers, name="struck")
    same(train(shared_path, Everything(), Margins(), steps=20, name="struck", servers=servers, resume=True), expected)


@pytest.mark.parametrize(
    "algorithm", [mpidl.Downpour(n_push=2), mpidl.Sync(), mpidl.algorithms.Averaging(tau=3, rate=RATE)]
)
def test_all_ranks_have_what_the_first_worker_has(comm, shared_path, algorithm):
    found = train(shared_path, Everything(), Margins(), epochs=1, algorithm=algorithm)
    for other in comm.allgather(found):
        same(other, found)
    (saved,) = (Checkpoint(each) for each in (shared_path / "run" / "checkpoints").iterdir() if each.name != "0")
    begun = tensors_of(Everything(), Margins())
    for name in ("kinds.1.teacher.weight", "kinds.2.total", "kinds.0.steps"):
        values = torch.as_tensor(saved.kept_by(0, "buffers")[name])
        assert torch.equal(values, found[f"0.{name}"]), name
        assert not torch.equal(values, begun[f"0.{name}"]), name
    assert torch.equal(torch.as_tensor(saved.kept_by(0, "state")["kinds.3.seen"]), found["0.kinds.3.seen"])
    for name in ("0.kinds.0.scale", "1.mean", "1.temperature"):
        assert not torch.equal(found[name], begun[name]), name


@pytest.mark.parametrize("algorithm", [mpidl.Downpour(), mpidl.Sync(), mpidl.algorithms.Averaging(tau=3, rate=RATE)])
def test_what_shards_dont_see_is_said(comm, shared_path, capfd, algorithm):
    trained = train(shared_path, Clamped(), "cross_entropy", epochs=1, algorithm=algorithm)
    told = "".join(comm.allgather(capfd.readouterr().err)).count("it changes its parameter layer.weight itself")
    assert told == (algorithm.name != "averaging")
    # The last steps may lead out of the bounds.
    assert bool(trained["0.layer.weight"].abs().max() < 0.1) == (algorithm.name == "averaging")


@pytest.mark.parametrize(
    "algorithm",
    [mpidl.Downpour(), mpidl.Sync(), mpidl.algorithms.Averaging(tau=3, rate=RATE)],
    ids=lambda each: each.name,
)
def test_unit_vectors_of_an_average_are_unit_vectors(comm, shared_path, algorithm):
    module = Spectral()
    options = {"ema": 0.95, "algorithm": algorithm, "deterministic": False}
    train(shared_path, module, torch.nn.functional.cross_entropy, epochs=2, **options)
    for name in ("_u", "_v"):
        vector = module.layer.parametrizations.weight[0].get_buffer(name)
        assert float(vector.norm()) == pytest.approx(1, abs=1e-5)
    assert module.sigma == pytest.approx(1, abs=0.1)
