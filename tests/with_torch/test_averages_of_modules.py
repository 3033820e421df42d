"""The average of a module's weights, with what belongs to it: means are averaged, other buffers are a replica's own."""

import pytest
import torch

import mpidl
from changing_modules import BATCH, RATE, Spectral, plain, same, tensors_of
from mpidl.torch import TorchModel

EMA = 0.95
LINE = (
    "mpidl: model: buffers layer.parametrizations.weight.0._u, layer.parametrizations.weight.0._v: each replica keeps "
    "its own; norm.running_mean, norm.running_var: averaged over replicas"
)


def test_the_average_is_that_of_pytorch_and_a_line_says_which_buffers_are_in_it(tmp_path, capfd):
    module, expected = Spectral(), Spectral()
    averaged = torch.optim.swa_utils.AveragedModel(
        expected, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA)
    )
    means = torch.optim.swa_utils.AveragedModel(
        expected, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(EMA), use_buffers=True
    )
    for each in (averaged, means):
        each.update_parameters(expected)
    plain(expected, steps=40, after=lambda: [each.update_parameters(expected) for each in (averaged, means)])
    mpidl.train(
        module, mpidl.Digits(), loss="cross_entropy", rule=mpidl.Sgd(RATE), batch=BATCH, steps=40, ema=EMA,
        deterministic=True, dir=tmp_path,
    )  # fmt: skip
    assert capfd.readouterr().err.count(LINE) == 1
    of_pytorch = tensors_of(averaged.module) | {
        name: tensor for name, tensor in tensors_of(means.module).items() if "running" in name
    }
    same(tensors_of(module), of_pytorch)
    assert module.sigma == pytest.approx(averaged.module.sigma) == pytest.approx(1, abs=0.1)


def test_running_values_of_any_normalisation_are_means_and_nothing_else_is():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("running_mean", "running_std", "running_codes", "momentum"):
                self.register_buffer(name, torch.zeros(3))

    class Codes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running_var", torch.zeros(3))

    norms = [torch.nn.BatchNorm2d(3), torch.nn.SyncBatchNorm(3), torch.nn.InstanceNorm1d(3, track_running_stats=True)]
    module = torch.nn.Sequential(torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3)), *norms, Own(), Codes())
    model = TorchModel(module, "mse_loss")
    (part,) = model.statistics
    means = [each.name for each in model.layout.within(part)]
    expected = [f"{number}.running_{kind}" for number in (1, 2, 3) for kind in ("mean", "var")]
    assert means == [*expected, "4.running_mean", "4.running_std"]
    assert model.own_buffers == ["0.weight_u", "0.weight_v", "4.running_codes", "4.momentum", "5.running_var"]
