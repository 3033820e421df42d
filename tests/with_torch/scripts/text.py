"""Classification of sequences: padding, a weighted sampler, gradient clipping, and warm-up with a linear fall."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Sentences(Dataset):
    def __init__(self, samples, seed):
        random = np.random.default_rng(seed)
        self.words = [torch.from_numpy(random.integers(1, 50, random.integers(3, 20))) for _ in range(samples)]
        self.labels = [int(bool((words < 4).any())) for words in self.words]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return self.words[index], self.labels[index]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(50, 16, padding_idx=0), nn.GRU(16, 32, batch_first=True)
        self.last = nn.Linear(32, 2)

    def forward(self, words):
        return self.last(self.cell(self.embedding(words))[0].amax(1))


def collate(samples):
    words = nn.utils.rnn.pad_sequence([words for words, _ in samples], batch_first=True)
    return words, torch.tensor([label for _, label in samples])


def main():
    torch.manual_seed(0)
    train, test, network = Sentences(2000, 0), Sentences(500, 1), Network()
    counts = np.bincount(train.labels)
    sampler = WeightedRandomSampler([1 / counts[label] for label in train.labels], len(train))
    loader = DataLoader(train, batch_size=32, sampler=sampler, collate_fn=collate)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    steps, warm_up = 8 * len(loader), len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / (steps - warm_up))
    )
    for _ in range(8):
        for words, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(words), labels).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    network.eval()
    with torch.no_grad():
        words, labels = collate([test[index] for index in range(len(test))])
        print(f"score {(network(words).argmax(1) == labels).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
