"""A small model of four layers, whole or in pipeline stages, trained one step on two microbatches.

    python pipeline.py [FAULTY_LAYER]
    torchrun --nproc-per-node STAGES pipeline.py [FAULTY_LAYER]

Each stage numbers its layers from 0, as Megatron does. The weight of the faulty layer, counted over the whole model, is
scaled. It knows nothing of precdiag.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

LAYERS, WIDTH, MICROBATCHES = 4, 8, 2
torch.set_num_threads(1)
stages = int(os.environ.get("WORLD_SIZE", "1"))
stage = int(os.environ.get("RANK", "0"))
if stages > 1:
    dist.init_process_group("gloo")
faulty = int(sys.argv[1]) if len(sys.argv) > 1 else None


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.up(x))


class Block(nn.Module):
    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        embedding, layers, head = nn.Embedding(16, WIDTH), [Layer() for _ in range(LAYERS)], nn.Linear(WIDTH, 16)
        if faulty is not None:
            with torch.no_grad():
                layers[faulty].up.weight.mul_(1.01)
        each = LAYERS // stages
        self.decoder = Block(layers[stage * each : (stage + 1) * each])
        if stage == 0:
            self.embedding = embedding
        if stage == stages - 1:
            self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) if stage == 0 else x
        x = self.decoder(x)
        return self.head(x) if stage == stages - 1 else x


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
torch.manual_seed(1)
batches = [torch.randint(0, 16, (4,)) for _ in range(MICROBATCHES)]
taken, given, sent = [], [], []


def forward(batch: torch.Tensor) -> None:
    if stage > 0:
        batch = torch.empty(4, WIDTH)
        dist.recv(batch, src=stage - 1)
        batch.requires_grad_()
    out = model(batch)
    if stage < stages - 1:
        sent.append(dist.isend(out.detach(), stage + 1))
    taken.append(batch)
    given.append(out)


def backward(at: int) -> None:
    if stage < stages - 1:
        gradient = torch.empty(4, WIDTH)
        dist.recv(gradient, src=stage + 1)
        given[at].backward(gradient)
    else:
        given[at].square().mean().backward()
    if stage > 0:
        sent.append(dist.isend(taken[at].grad, stage - 1))


# One forward, one backward: a stage that is not the last one runs ahead by one microbatch.
optimizer.zero_grad()
ahead = min(stages - 1 - stage, MICROBATCHES)
for number in range(ahead):
    forward(batches[number])
for number in range(MICROBATCHES):
    if number + ahead < MICROBATCHES:
        forward(batches[number + ahead])
    backward(number)
for message in sent:
    message.wait()
optimizer.step()
