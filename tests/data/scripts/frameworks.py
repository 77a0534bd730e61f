"""Train through a stub of the framework named first; iteration 1 of 3 (from 0) overflows and does not step."""

import sys
from types import SimpleNamespace

import torch
from torch import nn

OVERFLOW = 1


def parts():
    model = nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss(model):
    return model(torch.randn(3, 4)).pow(2).sum()


def transformers():
    """A resumed run: the log's first number is 30001. Two micro batches an update."""
    from transformers.trainer_callback import CallbackHandler

    model, optimizer = parts()
    handler, state = CallbackHandler(), SimpleNamespace(global_step=30000)
    for iteration in range(3):
        handler.on_step_begin(None, state, None)
        loss(model).backward()
        loss(model).backward()
        if iteration != OVERFLOW:
            optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
        state.global_step += 1
        handler.on_step_end(None, state, None)


def accelerate():
    from accelerate.optimizer import AcceleratedOptimizer

    model, optimizer = parts()
    gradients = SimpleNamespace(sync_gradients=True)
    wrapped = AcceleratedOptimizer(optimizer, gradients)
    for iteration in range(3):
        for micro in range(2):
            gradients.sync_gradients = micro == 1
            loss(model).backward()
            wrapped.overflow = iteration == OVERFLOW
            wrapped.step()


def deepspeed():
    from deepspeed.runtime.engine import DeepSpeedEngine

    model, optimizer = parts()
    engine = DeepSpeedEngine(optimizer, accumulate=2, global_steps=30000)
    for iteration in range(3):
        for _ in range(2):
            loss(model).backward()
            engine.overflow = iteration == OVERFLOW
            engine.step()


def megatron():
    from megatron.training.global_vars import get_args
    from megatron.training.training import train

    model, optimizer = parts()
    get_args().curr_iteration = 30000
    train(model, optimizer, 30003, [torch.randn(3, 4)] * 2, {30000 + OVERFLOW})


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
