"""Train three bias-free bf16 Linear layers for two iterations: seed fixed, learning rate 0, every run the same.

    python demo_script.py [--width 512] [--scale-second-layer 1.01]

An ordinary training script that knows nothing of precdiag; `precdiag demo` collects from it.
"""

import argparse

import torch


def main() -> None:
    """Train, and print the loss of each iteration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--scale-second-layer", type=float, default=1.0)
    options = parser.parse_args()

    torch.manual_seed(0)
    layers = [torch.nn.Linear(options.width, options.width, bias=False) for _ in range(3)]
    model = torch.nn.Sequential(*layers).to(torch.bfloat16)
    with torch.no_grad():
        model[1].weight.mul_(options.scale_second_layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for iteration in range(2):
        batch = torch.randn(32, options.width, dtype=torch.bfloat16)
        loss = model(batch).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"iteration {iteration}: loss {loss.item():.6f}")  # noqa: T201


if __name__ == "__main__":
    main()
