"""The demo's training instrumented by hand, as msprobe's manual says: `by_hand.py WIDTH CONFIG…`, a fork for each."""

import atexit
import os
import sys

import torch
from msprobe.pytorch import PrecisionDebugger


def main(config, width):
    debugger = PrecisionDebugger(config_path=config)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(3)]
    model = torch.nn.Sequential(*layers).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(2):
        batch = torch.randn(32, width, dtype=torch.bfloat16)
        debugger.start(model=model)
        loss = model(batch).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    for config in sys.argv[2:]:
        pid = os.fork()
        if pid == 0:
            main(config, int(sys.argv[1]))
            atexit._run_exitfuncs()
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            sys.exit(1)
