"""Train on batches from a DataLoader worker of each start method named: fork, spawn, forkserver."""

import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    """Six rows; each calls a module, as an augmentation does."""

    def __init__(self):
        self.augmentation = torch.nn.Linear(4, 4)

    def __len__(self):
        return 6

    def __getitem__(self, place):
        return self.augmentation(torch.full((4,), float(place))).detach()


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for method in sys.argv[1:]:
        for batch in DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context=method):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
