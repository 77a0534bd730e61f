"""gpt.py as msprobe's guide has one instrument it; the configuration is config.json in the working directory."""

import time

import torch
from gpt import build, iterate, options
from msprobe.pytorch import PrecisionDebugger


def main() -> None:
    """Train; print each iteration's loss and how long it took."""
    chosen = options()
    model = build(chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    debugger = PrecisionDebugger(config_path="config.json")
    for iteration in range(chosen.iterations):
        began = time.perf_counter()
        debugger.start(model=model)
        loss = iterate(model, optimizer, chosen)
        debugger.stop()
        debugger.step()
        print(f"iteration {iteration}: loss {loss:.6f}, {time.perf_counter() - began:.4f} s", flush=True)


if __name__ == "__main__":
    main()
