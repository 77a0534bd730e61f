"""A small training whose optimizer's step the arguments change: it knows nothing of precdiag.

python updates.py OPTIMIZER [lr=0.01] [last=0.01] [decay=0.1] [clip=1.0] [scale=1024.0] [main_grad=1] [bad=1] [overflow=1]
"""

import sys

import torch
from torch import nn


def main():
    options = dict(word.split("=") for word in sys.argv[2:])
    lr, decay = float(options.get("lr", 0.01)), float(options.get("decay", 0.1))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    kind = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}[sys.argv[1]]
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": float(options.get("last", lr))}]
    optimizer = kind(groups, lr=lr, weight_decay=decay)
    scaler = torch.amp.GradScaler("cpu", init_scale=float(options.get("scale", 1.0)), enabled="scale" in options)
    for step in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        if "overflow" in options and step == 0:
            model[0].weight.grad.fill_(float("inf"))
        scaler.unscale_(optimizer)
        if "clip" in options:
            torch.nn.utils.clip_grad_norm_(model.parameters(), float(options["clip"]))
        if "main_grad" in options:
            for parameter in model.parameters():
                parameter.main_grad = torch.full_like(parameter, 3.0)
                parameter.main_param = parameter.detach().float() * 2
        if "bad" in options and step == 0:
            model[0].weight.grad.fill_(float("nan"))
        scaler.step(optimizer)
        scaler.update()


main()
