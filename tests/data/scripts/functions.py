"""Call each of many plain functions and standard modules once, forward and backward, under the real msprobe.

    python functions.py OUT DTYPE…      one dump a dtype, OUT/DTYPE; it knows nothing of precdiag
"""

import json
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn


def calls(kind):
    """Name and thunk of each call, on inputs of its own."""

    def x(*shape):
        return torch.randn(shape).to(kind).requires_grad_()

    def positive(*shape):
        return (torch.rand(shape) + 0.5).to(kind).requires_grad_()

    labels, mask = torch.randint(8, (6,)), torch.rand(6, 8) > 0.5
    return {
        "linear": lambda: F.linear(x(6, 8), x(4, 8), x(4)),
        "linear of three dimensions": lambda: F.linear(x(2, 6, 8), x(4, 8)),
        "conv1d": lambda: F.conv1d(x(2, 3, 9), x(4, 3, 3), x(4), padding=1),
        "conv2d": lambda: F.conv2d(x(2, 3, 6, 6), x(4, 3, 3, 3), None, 2, 1),
        "matmul": lambda: torch.matmul(x(6, 8), x(8, 5)),
        "bmm": lambda: torch.bmm(x(2, 6, 8), x(2, 8, 5)),
        "addmm": lambda: torch.addmm(x(6, 5), x(6, 8), x(8, 5)),
        "attention": lambda: F.scaled_dot_product_attention(x(1, 2, 6, 8), x(1, 2, 6, 8), x(1, 2, 6, 8), is_causal=True),
        "softmax": lambda: torch.softmax(x(6, 8), -1),
        "softmax in float32": lambda: F.softmax(x(6, 8), dim=-1, dtype=torch.float32),
        "log_softmax": lambda: F.log_softmax(x(6, 8), dim=-1),
        "layer_norm": lambda: F.layer_norm(x(6, 8), (8,), x(8), x(8)),
        "rms_norm": lambda: F.rms_norm(x(6, 8), (8,), x(8), 1e-6),
        "group_norm": lambda: F.group_norm(x(2, 4, 6), 2, x(4), x(4)),
        "gelu": lambda: F.gelu(x(6, 8), approximate="tanh"),
        "silu": lambda: F.silu(x(6, 8)),
        "relu": lambda: F.relu(x(6, 8)),
        "softplus": lambda: F.softplus(x(6, 8)),
        "sigmoid": lambda: torch.sigmoid(x(6, 8)),
        "tanh": lambda: torch.tanh(x(6, 8)),
        "exp": lambda: torch.exp(x(6, 8)),
        "log": lambda: torch.log(positive(6, 8) + 1),
        "rsqrt": lambda: torch.rsqrt(positive(6, 8)),
        "pow": lambda: x(6, 8).pow(3),
        "add": lambda: x(6, 8) + x(8),
        "sub": lambda: x(6, 8) - x(6, 8),
        "mul": lambda: x(6, 8) * x(6, 1),
        "truediv": lambda: x(6, 8) / positive(6, 8),
        "sum": lambda: positive(6, 8).sum(0),
        "mean": lambda: positive(6, 8).mean(-1, keepdim=True),
        "masked_fill": lambda: x(6, 8).masked_fill(mask, 0.5),
        "embedding": lambda: F.embedding(labels, x(8, 4)),
        "cross_entropy": lambda: F.cross_entropy(x(6, 8), labels),
        "mse_loss": lambda: F.mse_loss(x(6, 8), torch.zeros(6, 8, dtype=kind)),
    }


class Modules(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.fc, self.norm = nn.Embedding(8, 6), nn.Linear(6, 5), nn.LayerNorm(5)
        self.act, self.loss = nn.GELU(), nn.MSELoss()

    def forward(self, ids):
        y = self.act(self.norm(self.fc(self.emb(ids))))
        return self.loss(y, torch.zeros_like(y))


def collect(out, name):
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    kind = getattr(torch, name)
    model, ids, functions = Modules().to(kind), torch.randint(8, (2, 7)), calls(kind)
    config = os.path.join(out, f"{name}.json")
    with open(config, "w") as file:
        settings = {"task": "tensor", "dump_path": os.path.join(out, name), "rank": [], "step": [0], "level": "mix"}
        json.dump({**settings, "tensor": {"scope": [], "list": [], "data_mode": ["all"]}}, file)
    debugger = PrecisionDebugger(config_path=config)
    debugger.start(model=model)
    model(ids).backward()
    for make in functions.values():
        made = make()
        made.backward(torch.randn_like(made))
    debugger.stop()
    debugger.step()


def main():
    import msprobe.pytorch  # noqa: F401

    out = sys.argv[1]
    for name in sys.argv[2:]:
        os.makedirs(out, exist_ok=True)
        child = os.fork()
        if child == 0:
            collect(out, name)
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name}: not collected")


if __name__ == "__main__":
    main()
