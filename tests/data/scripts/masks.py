"""Healthy uses of infinity, one an iteration: masks, filters, start values. `masks.py [NAME …]`, all without names."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

INF = float("inf")
LOW = torch.finfo(torch.float16).min


def scores(x):
    return torch.matmul(x, x.transpose(-1, -2))


def causal():
    return torch.ones(6, 6).triu(1).bool()


def last_class():
    return torch.tensor([False] * 7 + [True])


USES = {
    "float mask of fused attention": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.full((6, 6), -INF).triu(1)
    ),
    "bool mask of fused attention": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=~causal()),
    "largest negative number": lambda x: torch.softmax(
        scores(x).masked_fill(causal(), torch.finfo(torch.float32).min), -1
    ),
    "largest negative number of float16": lambda x: torch.softmax(
        scores(x).half() + torch.full((6, 6), LOW, dtype=torch.float16).triu(1), -1
    ).float(),
    "where with a tensor": lambda x: torch.where(~causal(), scores(x), torch.tensor(-INF)).softmax(-1),
    "where with a scalar": lambda x: torch.where(~causal(), scores(x), -INF).softmax(-1),
    "logarithm of zeros and ones": lambda x: torch.softmax(scores(x) + torch.ones(6, 6).tril().log(), -1),
    "concatenated mask": lambda x: torch.cat([scores(x), torch.full((2, 6, 2), -INF)], -1).softmax(-1),
    "mask in place": lambda x: in_place(scores(x)).softmax(-1),
    "view of a mask": lambda x: scores(x).masked_fill(causal(), -INF).view(2, 1, 6, 6).softmax(-1),
    "bfloat16": lambda x: scores(x.bfloat16()).masked_fill(causal(), -INF).float().softmax(-1),
    "running maximum": lambda x: running(x),
    "top k filter": lambda x: x.masked_fill(x < x.topk(3).values[..., -1:], -INF).softmax(-1),
    "nucleus filter": lambda x: nucleus(x.mean(1)),
    "log softmax": lambda x: F.log_softmax(x.masked_fill(last_class(), -INF), -1)[..., :7],
    "cross entropy": lambda x: F.cross_entropy(
        x.reshape(-1, 8).masked_fill(last_class(), -INF), torch.zeros(12, dtype=torch.long)
    ),
    "logsumexp": lambda x: torch.logsumexp(x.masked_fill(last_class(), -INF), -1),
    "padding of a pool": lambda x: F.max_pool1d(F.pad(x, (1, 1), value=-INF), 3, 1),
    "least of those above": lambda x: x.masked_fill(x > 0, INF).amin(-1).clamp(max=10),
    "largest of those below": lambda x: x.masked_fill(last_class(), -INF).amax(-1),
    "gumbel": lambda x: F.gumbel_softmax(x.masked_fill(last_class(), -INF), dim=-1),
    "categorical": lambda x: torch.distributions.Categorical(logits=x.masked_fill(last_class(), -INF)).entropy(),
    "exp": lambda x: torch.exp(x.masked_fill(last_class(), -INF) - x.amax(-1, keepdim=True)),
    "sigmoid": lambda x: torch.sigmoid(x.masked_fill(last_class(), -INF)),
    "beam": lambda x: torch.topk(
        (torch.tensor([0.0, -INF, -INF]).unsqueeze(-1) + F.log_softmax(x[:1, 0], -1)).reshape(-1), 2
    ).values,
    "replaced again": lambda x: replaced(x.masked_fill(last_class(), -INF)),
    "nearest other": lambda x: torch.cdist(x, x).masked_fill(torch.eye(6).bool(), INF).amin(-1),
}


def in_place(s):
    s[:, :, 4:] = -INF
    return s


def replaced(x):
    return torch.where(torch.isinf(x), torch.zeros_like(x), x)


def nucleus(logits):
    ordered, index = torch.sort(logits, descending=True)
    beyond = ordered.softmax(-1).cumsum(-1) > 0.7
    beyond[:, 0] = False
    kept = ordered.masked_fill(beyond, -INF)
    return torch.full_like(logits, -INF).scatter(1, index, kept).softmax(-1)


def running(x):
    """Attention block by block, as in FlashAttention: the maximum begins at -inf."""
    top, total, result = torch.full((2, 6, 1), -INF), torch.zeros(2, 6, 1), torch.zeros_like(x)
    for keys in x.split(3, 1):
        s = torch.matmul(x, keys.transpose(-1, -2))
        higher = torch.maximum(top, s.amax(-1, keepdim=True))
        p, shrink = torch.exp(s - higher), torch.exp(top - higher)
        total = total * shrink + p.sum(-1, keepdim=True)
        result, top = result * shrink + torch.matmul(p, keys), higher
    return result / total


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.use = None

    def forward(self, x):
        return self.use(self.up(x)).square().mean()


def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for name in sys.argv[1:] or USES:
        net.use = USES[name]
        optimizer.zero_grad()
        loss = net(torch.randn(2, 6, 8))
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in net.parameters()), name
        optimizer.step()
        print(f"{name}: {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
