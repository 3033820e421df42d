"""Regression on a table, with a learning rate that falls on a plateau and early stopping."""

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=3)
    best, waited, kept = float("inf"), 0, None
    for _ in range(60):
        network.train()
        for inputs, targets in DataLoader(train, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(inputs), targets).backward()
            optimizer.step()
        scheduler.step(loss := loss_on(network, validation))
        waited += 1
        if loss < best:
            best, waited, kept = loss, 0, copy.deepcopy(network.state_dict())
        if waited >= 8:
            break
    network.load_state_dict(kept)
    print(f"score {1 - loss_on(network, test) / test.tensors[1].var().item():.4f}")


if __name__ == "__main__":
    main()
