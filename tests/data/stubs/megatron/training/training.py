"""Megatron's train_step: forward and backward of every micro batch, then the optimizer, unless it overflowed."""


def train_step(model, optimizer, batches, overflow):
    for batch in batches:
        model(batch).pow(2).sum().backward()
    if not overflow:
        optimizer.step()


def train(model, optimizer, iterations, batches, overflows):
    from megatron.training.global_vars import get_args

    while get_args().curr_iteration < iterations:
        train_step(model, optimizer, batches, get_args().curr_iteration in overflows)
        get_args().curr_iteration += 1
