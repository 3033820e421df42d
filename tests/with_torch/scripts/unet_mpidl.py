"""Segment ellipses by a U-Net with the Dice loss; gradients accumulate over pieces, and weights are averaged."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import mpidl

SIDE, PIECES = 16, 2


def images(count, seed):
    random = torch.Generator().manual_seed(seed)
    grid = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")).float()
    centres = torch.rand(count, 2, 1, 1, generator=random) * 8 + 4
    radii = torch.rand(count, 2, 1, 1, generator=random) * 3 + 2
    masks = ((((grid - centres) / radii) ** 2).sum(1, keepdim=True) < 1).float()
    return TensorDataset(masks + 0.5 * torch.randn(masks.shape, generator=random), masks)


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom = block(1, 8), block(8, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Sequential(block(16, 8), nn.Conv2d(8, 1, 1))

    def forward(self, inputs):
        high = self.down(inputs)
        low = self.bottom(nn.functional.max_pool2d(high, 2))
        return self.last(torch.cat((high, self.up(low)), 1))


def dice_loss(outputs, masks):
    found = outputs.sigmoid()
    both, all_of = (found * masks).sum((1, 2, 3)), (found + masks).sum((1, 2, 3))
    return 1 - ((2 * both + 1) / (all_of + 1)).mean()


def overlap(model, data):
    """Return the mean Dice coefficient of the masks."""
    model.eval()
    inputs, masks = data.tensors
    with torch.no_grad():
        found = (model(inputs) > 0).float()
    return (2 * (found * masks).sum((1, 2, 3)) / (found + masks).sum((1, 2, 3))).mean().item()


def main():
    torch.manual_seed(0)
    train, test = images(1000, 1), images(200, 2)
    model = UNet()
    data, rule = mpidl.Indexed(train, test), mpidl.Adam(5e-3)
    settings = {"batch": 16 * PIECES, "micro_batches": PIECES, "drop_last": True, "ema": 0.98}
    mpidl.train(model, data, loss=dice_loss, rule=rule, **settings, epochs=8)
    print(f"overlap {overlap(model, test):.4f}")


if __name__ == "__main__":
    main()
