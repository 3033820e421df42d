"""Classify sequences of different lengths; classes are unbalanced, gradients clipped, and the rate warms up."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

WORDS, CLASSES = 200, 4


class Texts(Dataset):
    """Sentences of random words, of which some belong to the class."""

    def __init__(self, count, seed):
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.multinomial(torch.tensor([0.6, 0.2, 0.15, 0.05]), count, True, generator=random)
        self.texts = []
        for label in self.labels.tolist():
            length = int(torch.randint(5, 30, (), generator=random))
            words = torch.randint(1, WORDS, (length,), generator=random)
            marked = torch.rand(length, generator=random) < 0.25
            words[marked] = 1 + 10 * label + torch.randint(0, 10, (int(marked.sum()),), generator=random)
            self.texts.append(words)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], int(self.labels[index])


def pad(samples):
    texts, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(each) for each in texts])
    return (pad_sequence(texts, batch_first=True), lengths), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32, padding_idx=0)
        self.recurrent = nn.GRU(32, 32, batch_first=True)
        self.last = nn.Linear(32, CLASSES)

    def forward(self, texts, lengths):
        states, _ = self.recurrent(self.embedding(texts))
        known = torch.arange(states.shape[1]) < lengths[:, None]
        return self.last((states * known[:, :, None]).sum(1) / lengths[:, None])


def accuracy(model, data):
    model.eval()
    correct = 0
    with torch.no_grad():
        for inputs, labels in DataLoader(data, batch_size=256, collate_fn=pad):
            correct += (model(*inputs).argmax(1) == labels).sum().item()
    return correct / len(data)


def main():
    torch.manual_seed(0)
    train, test = Texts(3000, 1), Texts(1000, 2)
    weights = (1 / torch.bincount(train.labels).float())[train.labels]
    sampler = WeightedRandomSampler(weights, len(train))
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=50)
    for _ in range(8):
        model.train()
        for inputs, labels in DataLoader(train, batch_size=50, sampler=sampler, collate_fn=pad):
            optimizer.zero_grad()
            functional.cross_entropy(model(*inputs), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm_up.step()
    print(f"accuracy {accuracy(model, test):.4f}")


if __name__ == "__main__":
    main()
