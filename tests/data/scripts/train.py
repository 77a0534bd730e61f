"""One small training run, in the shape that its first argument names; it knows nothing of precdiag.

    python train.py SHAPE [STEPS]
"""

import json
import os
import signal
import sys
import time

import torch
from torch import nn


def small(width=4):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def batch():
    return torch.randn(3, 4)


def plain(steps, inside=lambda step, loss: None, between=lambda step: None):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        between(step)
        optimizer.zero_grad()
        loss = model(batch()).pow(2).sum()
        inside(step, loss)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss: {loss.item():.6f}", flush=True)


def batch_between_steps(steps):
    """The next batch is made with tensor operations after the optimizer's step: they belong to no step."""
    plain(steps, between=lambda step: torch.ones(3).softmax(0).cumsum(0))


def two_optimizers(steps):
    first, second = small(), small()
    one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.1)
    for _ in range(steps):
        loss = second(first(batch())).pow(2).sum()
        loss.backward()
        one.step()
        torch.ones(3).softmax(0)  # between the two: no part of the training
        two.step()
        one.zero_grad()
        two.zero_grad()


def gan(steps):
    """As in torch's DCGAN tutorial: the discriminator's step, then its call again for the generator's."""
    generator, discriminator = small(), nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    for_d = torch.optim.Adam(discriminator.parameters())
    for_g = torch.optim.Adam(generator.parameters())
    loss = nn.BCELoss()
    for _ in range(steps):
        discriminator.zero_grad()
        loss(discriminator(batch()), torch.ones(3, 1)).backward()
        fake = generator(batch())
        loss(discriminator(fake.detach()), torch.zeros(3, 1)).backward()
        for_d.step()
        generator.zero_grad()
        loss(discriminator(fake), torch.ones(3, 1)).backward()
        for_g.step()


def scaler_skips(steps):
    """A GradScaler that finds an inf in iteration 2 and does not step: the iteration ends all the same."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch()).pow(2).sum()
        if step == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def own_overflow_check(steps):
    """The script itself skips the step of iteration 2: seen where the gradients are thrown away."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model(batch()).pow(2).sum().backward()
        if step != 1:
            optimizer.step()
        optimizer.zero_grad()


def frozen_encoder(steps):
    encoder, model = small().requires_grad_(False), small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with torch.no_grad():
            seen = encoder(batch())
        model(seen).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluation(steps):
    """An evaluation before the training, and after each iteration, under no_grad and in eval mode alone."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(batch())
    for step in range(steps):
        model.train()
        model(batch()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        if step % 2:
            model(batch())
        else:
            with torch.no_grad():
                model(batch())


def accumulation(steps):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        for _ in range(3):
            model(batch()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def inference(steps):
    model = small().eval()
    with torch.no_grad():
        for _ in range(steps):
            model(batch()).softmax(-1)


def rehearsed(steps):
    """Two calls before any optimizer exists: they look like inference until one is built."""
    model = small()
    with torch.no_grad():
        model(batch())
        model(batch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(batch()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def compiled(steps):
    model = torch.compile(small(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(batch()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def second_loss(steps):
    """Two losses on one graph, an optimizer's step between their backward passes."""
    body, head = small(), small()
    one, two = torch.optim.SGD(body.parameters(), lr=0.0), torch.optim.SGD(head.parameters(), lr=0.0)
    for _ in range(steps):
        hidden = body(batch())
        head(hidden).sum().backward(retain_graph=True)
        two.step()
        hidden.pow(2).sum().backward()
        one.step()
        one.zero_grad()
        two.zero_grad()


def in_place(steps):
    """In-place writes right after a call: a checksum taken later sees other bytes."""
    layers = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(128, 128), nn.ReLU(inplace=True))])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(steps):
        out = layers(torch.randn(64, 128))
        for _ in range(20):
            out = torch.add(out, 1.0)
            out.mul_(0.5)
        out.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def nested(steps):
    model = nn.Sequential(small(), small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(batch()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def scaled(steps):
    """One process; TEST_SCALE scales the first weight."""
    model = small()
    with torch.no_grad():
        model[0].weight.mul_(float(os.environ.get("TEST_SCALE", 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(batch()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def tokens(steps):
    """Integer inputs; TEST_TOKEN changes one of them, TEST_TF32 a switch."""
    if "TEST_TF32" in os.environ:
        torch.set_float32_matmul_precision("high")
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(torch.tensor([1, 2, int(os.environ.get("TEST_TOKEN", 3))])).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss: {loss.item():.6f}")


def forked(steps):
    """A launcher that has trained, and forks the process that trains on."""
    plain(steps)
    child = os.fork()
    if child == 0:
        plain(steps)
        sys.exit(0)
    os.waitpid(child, 0)


def observed(steps):
    """A script that notices the hook: its losses differ under it."""
    print("loss: 0.5" if "PRECDIAG_SESSION" in os.environ else "loss: 0.25")
    plain(steps)


def by_hand(steps):
    """precdiag.hook: the script says itself where a step is."""
    from precdiag import hook

    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.start(model, out=os.environ.get("TEST_OUT"), step="0-2", level="mix")
    for _ in range(steps):
        with hook.capture():
            model(batch()).pow(2).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        hook.step()
    try:
        hook.start(model, out="elsewhere")
    except Exception as error:
        print("refused:", error)


def raises(steps):
    def fail(step, loss):
        if step == 1:
            raise RuntimeError("the script's own failure")

    plain(steps, inside=fail)


def exits(steps):
    plain(steps, inside=lambda step, loss: sys.exit(0) if step == 1 else None)


def killed(steps):
    plain(steps, inside=lambda step, loss: os.kill(os.getpid(), signal.SIGKILL) if step == 1 else None)


def leaves(steps):
    """os._exit after the last step: neither atexit nor msprobe's own flush runs."""
    plain(steps)
    os._exit(0)


def hangs(steps):
    """Stop inside step 1, with a child of its own, until a signal comes."""

    def wait(step, loss):
        if step == 1:
            if os.fork() == 0:
                time.sleep(600)
            print("waiting", flush=True)
            time.sleep(600)

    plain(steps, inside=wait)


def nothing_called(steps):
    print("torch is imported, nothing is trained")


def own_debugger(steps):
    """A PrecisionDebugger of the script's own; TEST_OUT is where it dumps."""
    from msprobe.pytorch import PrecisionDebugger

    out = os.environ["TEST_OUT"]
    config = {"task": "statistics", "dump_path": out, "rank": [], "step": [0, 1], "level": "L1", "statistics": {}}
    os.makedirs(out)
    with open(f"{out}/config.json", "w") as file:
        json.dump(config, file)
    debugger = PrecisionDebugger(config_path=f"{out}/config.json")
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        debugger.start(model=model)
        model(batch()).pow(2).sum().backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
        optimizer.zero_grad()


def sharded(steps):
    """One rank, its parameters sharded by FSDP2."""
    from torch.distributed.fsdp import fully_shard

    store = torch.distributed.FileStore(os.environ["TEST_STORE"], 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = fully_shard(small(), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(batch()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()


def forked_ranks(steps):
    """Two ranks that this process forks; TEST_STORE is where they meet."""
    children = []
    for rank in (0, 1):
        child = os.fork()
        if child == 0:
            store = torch.distributed.FileStore(os.environ["TEST_STORE"], 2)
            ddp(steps, store=store, rank=rank, world_size=2)
            sys.exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def ddp(steps, **group):
    """Data parallel over gloo; TEST_SCALE scales the first weight of the last rank, after DDP has made them equal."""
    torch.distributed.init_process_group("gloo", **group)
    model = nn.parallel.DistributedDataParallel(small())
    with torch.no_grad():
        if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            model.module[0].weight.mul_(float(os.environ.get("TEST_SCALE", 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        loss = model(batch()).pow(2).sum()
        if step == 1 and os.environ.get("TEST_DIES") == os.environ.get("TORCHELASTIC_RESTART_COUNT", ""):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()


def main():
    shape, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    if "TEST_UNSEEDED" not in os.environ:
        torch.manual_seed(0)
    globals()[shape](steps)


if __name__ == "__main__":
    main()
