"""Burgers' equation, u_t + u u_x = nu u_xx: a small network learns u, and nu with it, from noisy measurements of u."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

import mpidl

VISCOSITY, NOISE = 0.1, 0.05
#: Speeds of three travelling states, and where they begin; they merge.
SPEEDS, STARTS = (1.0, 0.3, -0.8), (-0.2, 0.1, 0.0)
#: Weight of a residual beside a measurement, and of the squares of the parameters beside both.
RESIDUAL, DECAY = 0.1, 3e-5


def solution(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return an exact solution (by the transform of Cole and Hopf)."""
    half = 2 * VISCOSITY
    waves = [np.exp(-c / half * (x - c * t / 2 - start)) for c, start in zip(SPEEDS, STARTS, strict=True)]
    return sum(c * wave for c, wave in zip(SPEEDS, waves, strict=True)) / sum(waves)


def data() -> mpidl.Arrays:
    """Return samples (x, t, whether u is measured there) and u, 0 where it isn't measured; the test data are exact."""
    random = np.random.default_rng(0)

    def samples(measured: int, others: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        x, t = random.uniform(-1, 1, measured + others), random.uniform(0, 1, measured + others)
        known = np.arange(measured + others) < measured
        u = np.where(known, solution(x, t) + noise * random.normal(size=x.shape), 0.0)
        return np.stack([x, t, known], axis=1), u[:, None]

    return mpidl.Arrays(samples(400, 600, NOISE), samples(1000, 0, 0.0))


class Burgers(torch.nn.Module):
    """u(x, t), and the viscosity."""

    def __init__(self, units: int = 4) -> None:
        super().__init__()
        layers = (torch.nn.Linear(2, units), torch.nn.Tanh(), torch.nn.Linear(units, 1))
        self.network = torch.nn.Sequential(*layers).double()
        self.viscosity = torch.nn.Parameter(torch.tensor([2 * VISCOSITY], dtype=torch.float64))

    def forward(self, samples: torch.Tensor) -> Any:
        """Return u where measured and the residual elsewhere, (n, 1); in training, the cost of the parameters too."""
        measured = samples[:, 2] == 1
        with torch.enable_grad():  # test losses are computed under torch.no_grad
            places = samples[:, :2].clone().requires_grad_()
            u = self.network(4 * places)[:, 0]
            slopes = _derivative(u, places)
            residual = slopes[:, 1] + u * slopes[:, 0] - self.viscosity * _derivative(slopes[:, 0], places)[:, 0]
        values = torch.where(measured, u, RESIDUAL * residual)[:, None]
        return (values, DECAY * sum(each.square().sum() for each in self.parameters())) if self.training else values


def _derivative(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(values.sum(), places, create_graph=True)[0]


def loss(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean square error of measurements and residuals, and the cost of large parameters."""
    values, cost = outputs if isinstance(outputs, tuple) else (outputs, 0.0)
    return functional.mse_loss(values, targets) + cost


def model(dataset: Any, seed: int) -> tuple[torch.nn.Module, Any]:
    """Return the module and its loss."""
    torch.manual_seed(seed)
    return Burgers(), loss
