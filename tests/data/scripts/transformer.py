"""Train a small transformer for a few steps, with one fault planted: it knows nothing of precdiag.

    python transformer.py [FAULT | other:FAULT]

`other:` computes as another device would: every linear layer rounds once, from float64.

Prints a JSON line a step, as a training does: step (from 1), loss, grad_norm, lr.
"""

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F

DEVICE, _, FAULT = (sys.argv[1] if len(sys.argv) > 1 else "none").rpartition(":")
STEPS, AT = 8, 6  # the optimizer's and the backward's fault come at this step, counted from 1
WIDTH, HEADS, WORDS, LENGTH = 16, 2, 32, 8


class Broken(torch.autograd.Function):
    """The same value, and a gradient that becomes NaN once."""

    @staticmethod
    def forward(ctx, x, bad):
        ctx.bad = bad
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return (grad * float("nan") if ctx.bad else grad), None


class Block(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.last = last
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, step):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        scores = torch.softmax(q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5, dim=-1)
        x = x + self.proj((scores @ v).transpose(1, 2).flatten(2))
        hidden = self.up(self.norm2(x))
        if self.last:
            hidden = F.gelu(hidden, approximate="tanh" if FAULT == "activation" else "none")
            hidden = Broken.apply(hidden, FAULT == "backward" and step == AT)
        else:
            hidden = F.gelu(hidden)
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(False), Block(True)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, step):
        x = self.words(words)
        for block in self.blocks:
            x = block(x, step)
        return self.head(x)


def train():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    if DEVICE == "other":
        nn.Linear.forward = lambda self, x: (x.double() @ self.weight.double().T + self.bias.double()).float()
    if FAULT == "scale":
        with torch.no_grad():
            model.blocks[1].up.weight.mul_(1.01)
    if FAULT == "weight":
        with torch.no_grad():
            weight = model.blocks[1].up.weight
            weight.copy_(torch.nextafter(weight, torch.full_like(weight, 2.0)))
    rate = 0.05 if FAULT == "rate" else 0.01
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    data = torch.Generator().manual_seed(1)
    for step in range(1, STEPS + 1):
        words = torch.randint(WORDS, (4, LENGTH), generator=data)
        if FAULT == "batch" and step == 2:
            words = torch.zeros_like(words)
        targets = (words + 1) % WORDS
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words, step).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        if FAULT == "optimizer" and step == AT:
            optimizer.param_groups[0]["betas"] = (0.1, 0.999)
        optimizer.step()
        print(json.dumps({"step": step, "loss": loss.item(), "grad_norm": norm.item(), "lr": rate}), flush=True)


train()
