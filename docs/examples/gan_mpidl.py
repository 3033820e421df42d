"""Train a generator of handwritten digits against a discriminator, on the ranks of an MPI job."""

import torch
from mpi4py import MPI
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import mpidl

NOISE, EPOCHS = 16, 300


def dense(inputs, outputs, activation):
    return nn.Sequential(nn.Linear(inputs, 128), activation, nn.Linear(128, 128), activation, nn.Linear(128, outputs))


def judged(logits, real):
    """Return how far a discriminator is from the judgement that images are real, or not."""
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))


def made_by(generator, count):
    return torch.sigmoid(generator(torch.randn(count, NOISE)))


def distance(generator, images):
    """Return the Fréchet distance between normal distributions with the moments of images and of generated ones."""
    with torch.no_grad():
        samples = [each.double() for each in (made_by(generator, 20_000), images)]
    (mean, covariance), (other_mean, other) = ((each.mean(0), torch.cov(each.T)) for each in samples)
    values = torch.linalg.eigvals(covariance @ other).real.clamp(min=0)
    return ((mean - other_mean).square().sum() + (covariance + other).trace() - 2 * values.sqrt().sum()).item()


def main():
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    generator, discriminator = dense(NOISE, 64, nn.ReLU()), dense(64, 1, nn.LeakyReLU(0.2))
    networks = {"generator": generator, "discriminator": discriminator}

    def loop(replica):
        for images, _ in replica.batches():
            made = made_by(generator, len(images))
            discriminator.zero_grad()
            loss = judged(discriminator(images), 0.9) + judged(discriminator(made.detach()), 0.0)
            loss.backward()
            replica.step(loss, "discriminator")
            generator.zero_grad()
            judged(discriminator(made), 1.0).backward()
            replica.step("generator")

    mpidl.loop(loop, networks, loader, rule=mpidl.Adam(2e-3, beta1=0.5), epochs=EPOCHS)
    if MPI.COMM_WORLD.rank > 0:  # all ranks have the trained networks
        return
    print(f"Fréchet distance {distance(generator, data.tensors[0]):.3f}")


if __name__ == "__main__":
    main()
