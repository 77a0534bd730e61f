"""Train a small GPT on random tokens on CPU: the plain script that the benchmarks collect from.

    python gpt.py [--layers 12] [--width 256] [--length 128] [--batch 4] [--iterations 1] [--scale-layer L]

`--scale-layer L` multiplies one weight of layer L by 1.01: the two runs are equal up to it and differ behind it.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

SCALE = 1.01
VOCABULARY = 4096


class Block(nn.Module):
    """Attention and an MLP, each behind a norm, in the calls that people's models are made of."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = functional.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    """Tokens to logits."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads=8) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to (batch, length, VOCABULARY)."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 12), ("width", 256), ("length", 128), ("batch", 4), ("iterations", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--scale-layer", type=int)
    return parser.parse_args()


def build(chosen: argparse.Namespace) -> Gpt:
    """Make the model, from a fixed seed and on one thread, so that two runs are equal to the byte."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Gpt(chosen.layers, chosen.width, chosen.length)
    if chosen.scale_layer is not None:
        with torch.no_grad():
            model.blocks[chosen.scale_layer].qkv.weight.mul_(SCALE)
    return model


def iterate(model: Gpt, optimizer: torch.optim.Optimizer, chosen: argparse.Namespace) -> float:
    """Run one iteration and return its loss."""
    tokens = torch.randint(VOCABULARY, (chosen.batch, chosen.length + 1))
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    """Train; print each iteration's loss and how long it took."""
    chosen = options()
    model = build(chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for iteration in range(chosen.iterations):
        began = time.perf_counter()
        loss = iterate(model, optimizer, chosen)
        print(f"iteration {iteration}: loss {loss:.6f}, {time.perf_counter() - began:.4f} s", flush=True)


if __name__ == "__main__":
    main()
