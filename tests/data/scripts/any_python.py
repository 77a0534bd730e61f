"""Two iterations on the stub of torch, for every Python that the hook is written for."""

import torch


class Model(torch.nn.Module):
    def __init__(self):
        self.weight = torch.Tensor()

    def forward(self, batch):
        return torch.Tensor()


model = Model()
optimizer = torch.optim.Optimizer(model.parameters())
for _ in range(2):
    model(torch.Tensor()).backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
