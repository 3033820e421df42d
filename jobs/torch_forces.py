"""Force matching: a network learns the energy of clusters of five atoms from their energies and forces."""

from typing import Any

import numpy as np
import torch

import mpidl

#: Morse's potential: depth, steepness and the distance of least energy; the temperature that weighs a cluster.
DEPTH, STEEPNESS, DISTANCE, TEMPERATURE = 1.0, 2.0, 1.0, 2.0
#: A trigonal bipyramid, nearly the cluster of least energy.
ATOMS = 0.58 * np.array([[1, 0, 0], [-0.5, 0.866, 0], [-0.5, -0.866, 0], [0, 0, 1.41], [0, 0, -1.41]])
FIRST, SECOND = np.triu_indices(len(ATOMS), 1)


class Clusters:
    """Samples (positions, ((energy, forces), weight)): shapes (5, 3), (16,) and (), the weight a Boltzmann factor.

    Parameters
    ----------
    samples : int
    seed : int
    """

    def __init__(self, samples: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.positions = ATOMS + 0.12 * random.normal(size=(samples, *ATOMS.shape))
        apart = self.positions[:, FIRST] - self.positions[:, SECOND]
        distances = np.linalg.norm(apart, axis=2)
        decay = np.exp(-STEEPNESS * (distances - DISTANCE))
        energies = DEPTH * ((1 - decay) ** 2 - 1).sum(1)
        pulls = -2 * DEPTH * STEEPNESS * ((1 - decay) * decay / distances)[..., None] * apart
        forces = np.zeros_like(self.positions)
        for pair, (one, other) in enumerate(zip(FIRST, SECOND, strict=True)):
            forces[:, one] += pulls[:, pair]
            forces[:, other] -= pulls[:, pair]
        self.targets = np.concatenate([energies[:, None], forces.reshape(samples, -1)], axis=1)
        self.weights = np.exp((energies.min() - energies) / TEMPERATURE)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> tuple[np.ndarray, tuple[np.ndarray, float]]:
        return self.positions[index], (self.targets[index], self.weights[index])


def data() -> mpidl.Indexed:
    """Return the clusters; a batch counts what its clusters weigh."""

    def weight(positions: np.ndarray, targets: tuple[np.ndarray, np.ndarray]) -> float:
        return float(targets[1].sum())

    return mpidl.Indexed(Clusters(480, seed=0), Clusters(200, seed=1), weight=weight)


class Energy(torch.nn.Module):
    """The sum of the atoms' energies, each a function of how many others are how far away."""

    def __init__(self, units: int = 10, radii: int = 12) -> None:
        super().__init__()
        self.register_buffer("radii", torch.linspace(0.5, 2.0, radii, dtype=torch.float64), persistent=False)
        layers = (torch.nn.Linear(radii, units), torch.nn.Tanh(), torch.nn.Linear(units, 1))
        self.network = torch.nn.Sequential(*layers).double()
        self.pairs = torch.nn.Linear(radii, 1, bias=False).double()

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """Return energies and forces, (n, 16), of positions (n, 5, 3)."""
        with torch.enable_grad():  # test losses are computed under torch.no_grad
            positions = positions.clone().requires_grad_()
            apart = (positions[:, FIRST] - positions[:, SECOND]).norm(dim=2)
            near = torch.exp(-((apart[..., None] - self.radii) ** 2) / 0.04)
            atoms = near.new_zeros((len(positions), len(ATOMS), near.shape[2]))
            for atom in (FIRST, SECOND):
                atoms = atoms.index_add(1, torch.as_tensor(atom, device=near.device), near)
            energies = (self.pairs(atoms) + self.network(atoms)).sum(1)
            (slopes,) = torch.autograd.grad(energies.sum(), positions, create_graph=True)
        return torch.cat([energies, -slopes.flatten(1)], dim=1)


def loss(outputs: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean square error of energies and forces, weighted by clusters."""
    values, weights = targets
    return ((outputs - values).square().mean(1) * weights).sum() / weights.sum()


def model(dataset: Any, seed: int) -> tuple[torch.nn.Module, Any]:
    """Return the module and its loss."""
    torch.manual_seed(seed)
    return Energy(), loss
