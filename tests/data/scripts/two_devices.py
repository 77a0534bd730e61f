"""A small transformer, forward and backward, as two devices compute it; it knows nothing of precdiag.

    python two_devices.py OUT DTYPE SEED LEVEL TASK FAULT…

Each FAULT is collected by the real msprobe in a process of its own into OUT/FAULT: `baseline` is the one device, `none`
the other without a fault, every other name the other with that fault planted. The other device sums in another order
and rounds its functions correctly, in both directions (a dispatch mode below the calls that msprobe records); its
port fuses attention and RMSNorm and writes its rotary embedding another way.
"""

import json
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, HEADS, LAYERS, VOCABULARY, BATCH, LENGTH = 64, 4, 3, 80, 2, 24
SPLITS = 4
aten = torch.ops.aten


class OtherDevice(TorchDispatchMode):
    """Another summation order in every product and reduction, and functions rounded from float64."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = function.overloadpacket
        if packet in (aten.mm, aten.bmm):
            return product(*args)
        if packet is aten.addmm:
            return (product(*args[1:]).float() + args[0].float()).to(args[1].dtype)
        if packet in ROUNDED and all(not isinstance(a, torch.Tensor) or a.is_floating_point() for a in args):
            wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
            found = function(*wide, **{key: value for key, value in kwargs.items() if key != "dtype"})
            return found.to(kwargs.get("dtype") or args[0].dtype)
        return function(*args, **kwargs)


ROUNDED = {aten._softmax, aten._softmax_backward_data, aten.gelu, aten.gelu_backward, aten.silu, aten.silu_backward}
ROUNDED |= {aten.rsqrt, aten.mean, aten.sum, aten.exp, aten.cos, aten.sin, aten._log_softmax, aten.tanh}


def product(a, b):
    """a @ b summed over K in pieces, last piece first, in float32."""
    pieces = list(zip(a.float().chunk(SPLITS, dim=-1), b.float().chunk(SPLITS, dim=-2)))
    total = pieces[-1][0] @ pieces[-1][1]
    for left, right in reversed(pieces[:-1]):
        total = total + left @ right
    return total.to(a.dtype)


class Port(nn.Module):
    """A module that knows on which device it runs and which fault is planted in it."""

    def __init__(self, other=False, fault=""):
        super().__init__()
        self.other, self.fault = other, fault


class RMSNorm(Port):
    def __init__(self, **port):
        super().__init__(**port)
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        eps = 3e-2 if self.fault == "rms_eps" else 1e-6
        if self.other:
            return F.rms_norm(x, (WIDTH,), self.weight, eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return self.weight * wide.to(x.dtype)


class Rotary(Port):
    def forward(self, x):
        half = x.shape[-1] // 2
        places = torch.arange(x.shape[-2]) + (1 if self.fault == "rotary" else 0)
        angle = places[:, None] * 10000.0 ** (-torch.arange(half) / half)
        if self.other:
            turned = torch.view_as_complex(torch.stack([x[..., :half], x[..., half:]], -1).float())
            turned = torch.view_as_real(turned * torch.polar(torch.ones_like(angle), angle))
            return torch.cat([turned[..., 0], turned[..., 1]], -1).to(x.dtype)
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Core(Port):
    def forward(self, q, k, v):
        size, length = q.shape[-1], q.shape[-2]
        scale = 1 / (size + 1) ** 0.5 if self.fault == "scale" else size**-0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril(1 if self.fault == "mask" else 0)
        if self.fault == "half":
            return F.scaled_dot_product_attention(*(x.bfloat16() for x in (q, k, v)), attn_mask=mask).to(q.dtype)
        if self.fault == "heads":
            v = v.roll(1, 1)
        if self.other:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        scores = (q @ k.transpose(-1, -2)) * scale
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1, dtype=torch.float32).to(q.dtype) @ v


class Act(Port):
    def forward(self, x):
        return F.gelu(x, approximate="tanh" if self.fault == "gelu" else "none")


class Scaled(torch.autograd.Function):
    """Nothing forward, 5 % too much backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.05


class Linear(nn.Linear):
    fault = ""

    def forward(self, x):
        if self.fault == "gradient":
            x = Scaled.apply(x)
        if self.fault == "low":  # ten bits of mantissa in what is multiplied
            x, weight = (lowered(t) for t in (x, self.weight))
            return F.linear(x, weight)
        return F.linear(x, self.weight)


def lowered(x):
    kept = (x.detach().float().view(torch.int32) & ~0x1FFF).view(torch.float32).to(x.dtype)
    return x + (kept - x).detach()


class Block(Port):
    def __init__(self, other, faults):
        super().__init__(other, faults.get("", ""))

        def port(name):
            return {"other": other, "fault": faults.get(name, "")}

        def linear(name, *sizes):
            made = Linear(*sizes, bias=False)
            made.fault = faults.get(name, "")
            return made

        self.norm1, self.norm2 = RMSNorm(**port("norm1")), RMSNorm(**port("norm2"))
        self.q, self.k, self.v, self.o = (linear(name, WIDTH, WIDTH) for name in "qkvo")
        self.rope_q, self.rope_k = Rotary(**port("rope_q")), Rotary(**port("rope_k"))
        self.core, self.act = Core(**port("core")), Act(**port("act"))
        self.up, self.down = linear("up", WIDTH, 4 * WIDTH), linear("down", 4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = self.core(self.rope_q(q), self.rope_k(k), v)
        y = self.o(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        x = x + (y * 0.9 if self.fault == "residual" else y)
        return x + self.down(self.act(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, other, faults):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(other, faults.get(layer, {})) for layer in range(LAYERS))
        self.norm = RMSNorm(other=other)
        self.head = Linear(WIDTH, VOCABULARY, bias=False)
        self.loss = nn.CrossEntropyLoss(label_smoothing=faults.get("loss", 0.0))

    def forward(self, tokens, labels):
        x = self.emb(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(self.norm(x)).float().view(-1, VOCABULARY), labels.view(-1))


# Where each fault is planted: layer, then the name of the module in it.
PLANTED = {
    "gelu": {1: {"act": "gelu"}},
    "rms_eps": {1: {"norm2": "rms_eps"}},
    "rotary": {1: {"rope_k": "rotary"}},
    "mask": {2: {"core": "mask"}},
    "scale": {2: {"core": "scale"}},
    "half": {1: {"core": "half"}},
    "heads": {1: {"core": "heads"}},
    "low": {1: {"down": "low"}},
    "residual": {1: {"": "residual"}},
    "gradient": {1: {"up": "gradient"}},
    "smoothing": {"loss": 0.1},
    "weight": {},
    "norm_weight": {},
    "token": {},
    "label": {},
}


def changed(fault, model, tokens, labels):
    """Plant the faults that are in the data or the parameters."""
    if fault == "weight":
        model.layers[1].up.weight.data *= 1.01
    if fault == "norm_weight":
        model.layers[2].norm1.weight.data[3] *= 1.05
    if fault == "ulp":  # no fault: the first device again, from an embedding that is moved by one ulp
        table = model.emb.weight.data
        model.emb.weight.data = torch.nextafter(table, torch.full_like(table, float("inf")))
    if fault == "token":
        tokens[1, 5] = (tokens[1, 5] + 1) % VOCABULARY
    if fault == "label":
        labels[0, 7] = (labels[0, 7] + 1) % VOCABULARY


def collect(out, dtype, seed, level, task, fault):
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    other = fault not in ("baseline", "ulp")
    model = Model(other, PLANTED.get(fault, {}))
    for name, parameter in model.named_parameters():
        if name.endswith(("norm1.weight", "norm2.weight", "norm.weight")):
            parameter.data = 1 + 0.3 * torch.randn_like(parameter)
    model.to(dtype)
    tokens, labels = torch.randint(VOCABULARY, (2, BATCH, LENGTH)).unbind()
    changed(fault, model, tokens, labels)
    config = os.path.join(out, f"{fault}.json")
    block = {"scope": [], "list": [], "data_mode": ["all"]}
    block |= {"summary_mode": "statistics"} if task == "statistics" else {}
    with open(config, "w") as file:
        settings = {"task": task, "dump_path": os.path.join(out, fault), "rank": [], "step": [0], "level": level}
        json.dump({**settings, task: block}, file)
    debugger = PrecisionDebugger(config_path=config)
    debugger.start(model=model)
    if other:
        with OtherDevice():
            model(tokens, labels).backward()
    else:
        model(tokens, labels).backward()
    debugger.stop()
    debugger.step()


def main():
    out, dtype, seed, level, task = sys.argv[1:6]
    import msprobe.pytorch  # noqa: F401

    for fault in sys.argv[6:]:
        os.makedirs(out, exist_ok=True)
        child = os.fork()
        if child == 0:
            collect(out, getattr(torch, dtype), int(seed), level, task, fault)
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{fault}: not collected")


if __name__ == "__main__":
    main()
