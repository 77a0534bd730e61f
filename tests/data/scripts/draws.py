"""A model that drops and chooses: dropout, then experts by top-k of a gate whose first two rows are tied.

    python draws.py OUT VARIANT…      one msprobe dump a variant; it knows nothing of precdiag

`baseline`; `seed`: the generator draws other numbers; `seed_weight`, `seed_scaled`: with a weight, or a result, that
is off behind the dropout; `tie`: products round otherwise, which flips the choice.
"""

import contextlib
import json
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, EXPERTS, TOKENS = 16, 4, 12


class Large(TorchDispatchMode):
    """A device whose gelu is 2 % too large."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return made * 1.02 if function.overloadpacket is torch.ops.aten.gelu else made


class Rounding(TorchDispatchMode):
    """A device whose products round otherwise."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if function.overloadpacket not in (torch.ops.aten.mm, torch.ops.aten.addmm):
            return made
        return made * (1 + 1e-7 * torch.randn(made.shape, generator=self.generator))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        gate = self.gate.weight.data
        gate[1] = gate[0]
        gate[:2] += 1.0

    def forward(self, x):
        y = self.second(F.dropout(self.first(x), 0.2))
        y = F.gelu(y)
        scores = torch.softmax(self.gate(y.abs()), -1)
        weight, chosen = torch.topk(scores, 1)
        made = torch.stack([expert(y) for expert in self.experts], 1)
        picked = torch.gather(made, 1, chosen[:, :, None].expand(-1, -1, WIDTH))[:, 0]
        return (picked * weight).pow(2).mean()


def collect(out, variant):
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    model, x = Model(), torch.randn(TOKENS, WIDTH)
    if variant == "seed_weight":
        model.experts[2].weight.data *= 1.01
    config = os.path.join(out, f"{variant}.json")
    with open(config, "w") as file:
        settings = {"task": "tensor", "dump_path": os.path.join(out, variant), "rank": [], "step": [0], "level": "L1"}
        json.dump({**settings, "tensor": {"scope": [], "list": [], "data_mode": ["all"]}}, file)
    debugger = PrecisionDebugger(config_path=config)
    debugger.start(model=model)
    torch.manual_seed(1 if variant.startswith("seed") else 0)
    device = {"seed_scaled": Large, "tie": Rounding}.get(variant, contextlib.nullcontext)
    with device():
        model(x).backward()
    debugger.stop()
    debugger.step()


def main():
    import msprobe.pytorch  # noqa: F401

    for variant in sys.argv[2:]:
        os.makedirs(sys.argv[1], exist_ok=True)
        child = os.fork()
        if child == 0:
            collect(sys.argv[1], variant)
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{variant}: not collected")


if __name__ == "__main__":
    main()
