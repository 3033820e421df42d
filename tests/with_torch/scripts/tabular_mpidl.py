"""Regression on a table, with a learning rate that falls on a plateau and early stopping."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import mpidl


def table(samples, seed):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(samples, 8)).astype(np.float32)
    noise = 0.1 * random.normal(size=samples)
    targets = np.sin(inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] + noise
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets[:, None].astype(np.float32)))


def loss_on(network, data):
    network.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(network(data.tensors[0]), data.tensors[1]).item()


def main():
    torch.manual_seed(0)
    train, validation, test = table(2000, 0), table(500, 1), table(500, 2)
    network = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    run = mpidl.train(
        network, mpidl.Indexed(train, test, validation=validation), loss="mse_loss", rule=mpidl.Adam(1e-2), batch=64,
        epochs=60, patience=8, rate={"schedule": "plateau", "factor": 0.3, "patience": 3},
    )  # fmt: skip
    kept = {name: torch.from_numpy(values) for name, values in mpidl.load(run["run_dir"], "best").tensors.items()}
    network.load_state_dict(kept)
    print(f"score {1 - loss_on(network, test) / test.tensors[1].var().item():.4f}")


if __name__ == "__main__":
    main()
