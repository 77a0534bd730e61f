"""Train in a task of a Ray cluster that runs already: `on_ray.py ADDRESS [ENV_VARS as JSON]`."""

import json
import sys

import ray


def train():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    env_vars = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    ray.init(address=sys.argv[1], runtime_env={"env_vars": env_vars} if env_vars else None)
    ray.get(ray.remote(train).remote())
