"""Segmentation by a small U-Net: Dice and cross-entropy, accumulated gradients, and an average of the weights."""

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __init__(self, samples, seed):
        self.samples, self.seed = samples, seed

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        random = np.random.default_rng([self.seed, index])
        mask, (row, column) = np.zeros((1, 16, 16), np.float32), random.integers(1, 10, 2)
        mask[0, row : row + 5, column : column + 5] = 1
        return torch.from_numpy(mask + 0.4 * random.normal(size=mask.shape).astype(np.float32)), torch.from_numpy(mask)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 1, 1)

    def forward(self, images):
        high = self.down(images)
        return self.last(torch.cat([high, self.up(self.deep(high))], 1))


def dice(outputs, masks):
    found = torch.sigmoid(outputs)
    return 1 - (2 * (found * masks).sum() + 1) / (found.sum() + masks.sum() + 1)


def main():
    torch.manual_seed(0)
    train, test, network = Squares(400, 0), Squares(100, 1), Unet()
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(10):
        for number, (images, masks) in enumerate(DataLoader(train, batch_size=10, shuffle=True), 1):
            outputs = network(images)
            loss = dice(outputs, masks) + 0.5 * nn.functional.binary_cross_entropy_with_logits(outputs, masks)
            (loss / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
                averaged.update_parameters(network)
    network = averaged.module
    network.eval()
    with torch.no_grad():
        images, masks = map(torch.stack, zip(*[test[index] for index in range(len(test))], strict=True))
        print(f"score {1 - dice(100 * network(images), masks).item():.4f}")


if __name__ == "__main__":
    main()
