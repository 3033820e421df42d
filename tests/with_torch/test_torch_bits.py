"""One worker that trains a module is a plain PyTorch loop, bit for bit."""

import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.config import from_dict  # noqa: E402
from mpidl.job.job import Job  # noqa: E402
from mpidl.torch import TorchModel  # noqa: E402
from torch_modules import cnn, mlp, plain_loop, transformer  # noqa: E402

RUN = {"batch": 37, "steps": 100, "seed": 5}


def job(module):
    """Return the job that `mpidl.train` would make."""
    values = {"run": {"steps": RUN["steps"], "seed": RUN["seed"]}, "model": {"factory": "python:object"}}
    config = from_dict(values | {"data": {"batch": RUN["batch"]}}, data_source=mpidl.Digits())
    return Job.of(config, mpidl.Digits().open(), TorchModel(module, "cross_entropy"))


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("make", [mlp, cnn, transformer])
def test_one_worker_is_a_plain_loop(tmp_path, make, servers):
    module, plain = make(), make()
    mpidl.train(
        module, mpidl.Digits(), loss="cross_entropy", rule=mpidl.Sgd(0.05), servers=servers, dir=tmp_path, **RUN
    )
    plain_loop(plain, job(make()), 0.05)
    found, expected = module.state_dict(), plain.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        if "running" in name:
            # Old + (new - old): the last bit may be another.
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found[name], tensor), name
    last = list(found)[-1]
    assert not torch.equal(found[last], make().state_dict()[last])


def test_dropout_follows_from_seed_and_batch(tmp_path):
    trained = []
    for noise, seed in enumerate([3, 3, 4]):
        module = mlp(dropout=0.3)
        torch.manual_seed(noise)
        model = TorchModel(module, "cross_entropy", seed=seed)
        mpidl.train(model, mpidl.Digits(), batch=37, steps=20, dir=tmp_path)
        trained.append(module.state_dict()["1.weight"].clone())
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])
