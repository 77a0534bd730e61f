"""Small models that train healthily, but for one planted fault an iteration; they know nothing of precdiag.

    python planted.py attention|experts|convolution FAULT [FAULT …]
    torchrun --nproc-per-node 2 planted.py parallel FAULT [FAULT …]

Iteration i has the i-th fault. Weights are set back before each, so that no fault outlives its own (the replicas' last).
"""

import copy
import math
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

FAULT = ""
RANK = int(os.environ.get("RANK", "0"))
NAN, INF = float("nan"), float("inf")


def fault(name):
    return name == FAULT


class Attention(nn.Module):
    """A decoder block with a -inf mask, dropout and a language-model head."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(19, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.proj = nn.Linear(16, 16)
        self.head = nn.Linear(16, 19)

    def forward(self, tokens):
        x = self.emb(tokens)
        if fault("embedding scaled by inf"):
            x = x * INF
        if fault("setitem"):
            x[0, 1, 2] = NAN
        if fault("setitem of a tensor"):
            x[0, 1] = torch.log(-torch.ones(16))
        if fault("fill"):
            x[:, 3].fill_(NAN)
        if fault("data written behind the hooks"):
            h = torch.tanh(x)
            h.data.view(-1)[5:7] = torch.from_numpy(__import__("numpy").array([NAN, NAN], dtype="float32"))
            x = torch.sin(h)
        if fault("numpy write"):
            h = torch.tanh(x)
            h.detach().numpy()[0, 0, 0] = INF
            x = torch.sin(h)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(16)
        if fault("scores overflow"):
            scores = torch.exp(scores * 1000 + 100)
        mask = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
        if fault("fully masked row"):
            mask[2] = True
        if fault("added mask"):
            scores = scores + torch.full(mask.shape, -INF).triu(1)
        elif fault("mask times infinity"):
            scores = scores + mask.float() * -INF
        elif fault("mask in place"):
            scores[:, mask] = -INF
        else:
            scores = scores.masked_fill(mask, -INF)
        attention = F.dropout(torch.softmax(scores, dim=-1), 0.1)
        x = x + self.proj(torch.matmul(attention, v))
        if fault("log of a negative"):
            x = torch.log(x - 9.0)
        if fault("sqrt of a negative"):
            x = (x.abs() - 1.0).sqrt()
        if fault("division by zero"):
            x = x / torch.zeros(16)
        if fault("zero over zero"):
            x = torch.div(x - x, x - x)
        if fault("in-place division"):
            x = x + 0.0
            x.div_(torch.zeros(()))
        if fault("where"):
            x = torch.where(x > 0, torch.sqrt(x.abs() - x.abs().amin()), x)
        if fault("sqrt at zero"):
            x = torch.sqrt(F.relu(x))
        if fault("killed by nan_to_num"):
            x = torch.nan_to_num(torch.log(x - 9.0))
        if fault("a mask that reaches a sum"):
            x = x + x.masked_fill(x > 0, -INF).sum()
        return self.head(x)

    @staticmethod
    def batch():
        return torch.randint(0, 19, (2, 6))

    @staticmethod
    def loss(logits, tokens):
        labels = tokens.roll(-1, 1)
        if fault("every label ignored"):
            labels = torch.full_like(labels, -100)
        loss = F.cross_entropy(logits.reshape(-1, 19), labels.reshape(-1))
        if fault("loss scaled into overflow"):
            loss = loss.half() * 60000
        return loss


class Experts(nn.Module):
    """A mixture of experts: softmax router, top 2 of 4, index_add to combine."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4))
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        logits = self.router(x)
        if fault("router all masked"):
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool), -INF)
        else:
            logits = logits.masked_fill(logits < logits.topk(3).values[:, -1:], -INF)
        probabilities = F.softmax(logits, dim=-1)
        weights, chosen = torch.topk(probabilities, 2)
        if fault("router entropy"):
            entropy = -(probabilities * torch.log(probabilities)).sum()
            weights = weights + 0 * entropy
        if fault("normalised by zero"):
            weights = weights * 0
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            if fault("an expert without tokens") and index == 2:
                rows, place = rows[:0], place[:0]
                result = result + torch.mean(x[rows])
            if fault("deviation of one token") and index == 1:
                result = result + torch.std(x[:1], dim=0)
            y = expert(x[rows])
            if fault("expert overflows") and index == 3:
                y = torch.exp(y * 1e4 + 200)
            if fault("fp16 product overflows") and index == 0:
                y = torch.matmul((y * 1e3).half(), torch.full((8, 8), 6e4, dtype=torch.float16)).float()
            if fault("cast overflows") and index == 0:
                y = (y * 1e9).half().float()
            if fault("norm of zero") and index == 2:
                y = y * (y - y).pow(2).sum(-1, keepdim=True).pow(0.5)
            result = result.index_add(0, rows, y * weights[rows, place].unsqueeze(-1))
        if fault("power of a negative"):
            result = torch.pow(result - 9.0, 0.5)
        if fault("inverse of a square root"):
            result = torch.rsqrt(result - result)
        if fault("logarithm of one plus"):
            result = torch.log1p(result - 9.0)
        if fault("arc cosine"):
            result = torch.acos(result + 9.0)
        if fault("infinity minus infinity"):
            big = torch.exp(result + 1e3)
            result = big - big
        if fault("autograd function"):
            result = Broken.apply(result)
        return self.out(torch.tanh(result))

    @staticmethod
    def batch():
        x = torch.randn(12, 8)
        if fault("data"):
            x[3, 4] = NAN
        return x

    @staticmethod
    def loss(output, x):
        if fault("binary cross entropy of weights"):
            return F.nll_loss(F.log_softmax(output.expand(-1, 2), -1), torch.zeros(12, dtype=torch.long), torch.zeros(2))
        return output.pow(2).mean()


class Broken(torch.autograd.Function):
    """An operation that no hook sees, whose gradient is wrong."""

    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * NAN


class Convolution(nn.Module):
    """Two convolutions with batch norm and pooling."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.two = nn.Conv2d(6, 8, 3, stride=2)
        self.fc = nn.Linear(8, 5)

    def forward(self, image):
        x = self.one(image)
        if fault("group norm of a constant"):
            x = F.group_norm(x * 0, 2, eps=0.0)
        else:
            x = self.bn(x)
        if fault("in place by inf"):
            x = x + 0
            x.mul_(INF)
        if fault("clamp of nothing"):
            x = torch.reciprocal(F.relu(x))
        x = F.relu(x)
        if fault("normalised without eps"):
            x = F.normalize(x * 0, dim=1, eps=0.0)
        x = self.two(x)
        if fault("max over minus infinity"):
            x = F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=-INF), 3)
        if fault("square root of the variance"):
            x = x + (x - x.mean((2, 3), keepdim=True)).mul(0.0).square().sum().sqrt()
        x = x.mean((2, 3))
        if fault("loss scale"):
            x = torch.matmul(x.half(), torch.full((8, 8), 6e3, dtype=torch.float16)).float() * 1e-2
        return self.fc(x)

    @staticmethod
    def batch():
        image = torch.randn(4, 3, 9, 9)
        if fault("image"):
            image[1, 2, 3, 3] = INF
        return image

    @staticmethod
    def loss(output, image):
        target = torch.zeros(4, 5)
        if fault("target"):
            target[2, 2] = NAN
        if fault("divergence"):
            return F.kl_div(F.softmax(output, -1), output, reduction="batchmean")
        if fault("loss scale"):
            return F.mse_loss(output, target).half() * 0 + F.mse_loss(output, target) * 65536.0
        if fault("gradient hook"):
            output.register_hook(lambda gradient: gradient / 0.0)
        return F.mse_loss(output, target)


class Parallel(nn.Module):
    """A layer whose halves stand on two ranks: partial sums meet in an all_reduce, gradients in another."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        x = torch.tanh(x)
        if fault("broadcast from rank 0"):
            extra = torch.log(torch.full((8,), -1.0)) if RANK == 0 else torch.ones(8)
            torch.distributed.broadcast(extra, 0)
            x = x + extra
        h = self.up(x)
        if fault("rank 1 before the reduction") and RANK == 1:
            h = torch.sqrt(h - 9.0)
        h = self.down(torch.relu(h))
        if fault("reduction overflows"):
            h = (h * 0 + 40000).half()
        torch.distributed.all_reduce(h)
        h = h.float()
        if fault("rank 0 behind the reduction") and RANK == 0:
            h = torch.log(h - 99.0)
        if fault("both behind the reduction"):
            h = torch.acos(h + 9.0)
        if fault("rank 1 in the backward") and RANK == 1:
            h = torch.where(h > 99, torch.sqrt(h * 0), h)
        return self.head(h)

    @staticmethod
    def batch():
        return torch.ones(4, 8)

    @staticmethod
    def loss(output, x):
        return output.pow(2).mean()


class Replicas(Parallel):
    """The same layer on both ranks under DistributedDataParallel, whose reducer no hook sees."""

    def forward(self, x):
        h = torch.relu(self.up(torch.tanh(x)))
        if fault("replica of rank 1") and RANK == 1:
            h = h / (h - h)
        if fault("replica of rank 1, backward") and RANK == 1:
            h = torch.where(h > 99, torch.sqrt(h * 0), h)
        return self.head(self.down(h))


def average_gradients(model):
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad.div_(2.0)


def poison(model):
    """Put the fault into a weight or a buffer, as a bad checkpoint does."""
    with torch.no_grad():
        if fault("weight"):
            model.qkv.weight[3, 3] = NAN
        if fault("bias"):
            model.two.bias[1] = -INF
        if fault("running mean"):
            model.bn.running_mean[2] = NAN
            model.bn.eval()
        if fault("expert weight"):
            model.experts[1][2].weight[0, 0] = INF


def main():
    global FAULT
    torch.manual_seed(0)
    model = globals()[sys.argv[1].capitalize()]()
    replicas = None
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        replicas = nn.parallel.DistributedDataParallel(Replicas())
    healthy = copy.deepcopy(model.state_dict())
    for step, FAULT in enumerate(sys.argv[2:]):
        model.load_state_dict(healthy)
        model.train()
        poison(model)
        trained = replicas if FAULT.startswith("replica") else model
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        optimizer.zero_grad()
        batch = model.batch()
        loss = model.loss(trained(batch), batch)
        loss.backward()
        if replicas is not None and trained is not replicas:
            average_gradients(model)
        optimizer.step()
        if RANK == 0:
            print(f"step: {step}  loss: {loss.item():.6f}  fault: {FAULT}", flush=True)
    if replicas is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
