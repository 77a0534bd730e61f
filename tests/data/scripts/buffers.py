"""A small training step with uninitialised buffers and in-place writes: `buffers.py [THREADS]`."""

import os
import sys

import torch
from torch import nn

torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(96, 384)
        self.norm = nn.LayerNorm(384)
        self.down = nn.Linear(384, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.nn.functional.gelu(self.up(x)))
        self.litter(hidden)
        scratch = torch.empty_like(hidden)
        scratch[:] = hidden
        self.litter(hidden)
        room = hidden.new_empty(hidden.shape)
        torch.mul(hidden.detach(), 0.5, out=room)
        self.litter(hidden)
        filled = torch.empty_strided(hidden.shape, hidden.stride())
        filled.fill_(0.25)
        return self.down(scratch + room + filled)

    @staticmethod
    def litter(like: torch.Tensor) -> None:
        """Leave bytes behind that no two runs share, for the next allocation to find."""
        bytearray_ = bytearray(os.urandom(like.numel() * like.element_size()))
        torch.empty_like(like).copy_(torch.frombuffer(bytearray_, dtype=like.dtype).view_as(like))


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(2):
    loss = net(torch.randn(256, 96)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.9f}")
