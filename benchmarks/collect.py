"""What collecting costs: one training script plain, instrumented by hand as msprobe's manual says, and under precdiag.

    python benchmarks/collect.py [--rounds 3] [--iterations 40] [--window 20-25] [--level L1] [--task statistics]

Prints the median time of an iteration outside the window against the plain script, and inside the window against the
hand-instrumented one. Time is the process's own CPU time on one thread, which other processes cannot stretch; the
three are run in turn, round after round, so that a slow moment of the machine hits all.
Exits 1 where precdiag costs more than 2 % outside the window, or more than 5 % over instrumenting by hand inside it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

MODES = ("plain", "by hand", "precdiag")
OUTSIDE_ALLOWED, INSIDE_ALLOWED = 0.02, 0.05  # issue 3's bounds
WARM_UP = 5  # iterations at the start, and behind the window, that are not counted


def train(iterations: int, debugger: object) -> list[float]:
    """Train a small transformer, print nothing, return the seconds of each iteration."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    seconds = []
    for _ in range(iterations):
        batch = torch.randn(8, 32, 128)
        began = time.process_time()
        if debugger is not None:
            debugger.start(model=model)
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - began)
    return seconds


def child(options: argparse.Namespace) -> None:
    """Train in this process, under a PrecisionDebugger of its own where --config says so; write the seconds."""
    debugger = None
    if options.config:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(config_path=options.config)
    Path(options.times).write_text(json.dumps(train(options.iterations, debugger)))


@dataclass(frozen=True)
class Plan:
    """What is trained, and what of it is collected."""

    rounds: int = 3
    iterations: int = 40
    window: str = "20-25"
    level: str = "L1"
    task: str = "statistics"


@dataclass(frozen=True)
class Times:
    """Median seconds of an iteration by mode: outside the window, inside it, and its first (msprobe builds itself)."""

    outside: dict[str, float]
    inside: dict[str, float]
    first: dict[str, float]

    @property
    def over(self) -> float:
        """What precdiag costs outside the window, against the plain script."""
        return self.outside["precdiag"] / self.outside["plain"] - 1

    @property
    def against(self) -> float:
        """What precdiag costs inside the window, against instrumenting by hand."""
        return self.inside["precdiag"] / self.inside["by hand"] - 1


def measure(plan: Plan) -> Times:
    """Run the modes in turn, round after round."""
    from precdiag.session import parse_window

    window = parse_window(plan.window)[0]
    near = {*range(WARM_UP), *window, window[-1] + 1}
    outside: dict[str, list[float]] = {mode: [] for mode in MODES}
    inside: dict[str, list[float]] = {mode: [] for mode in MODES}
    first: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(plan.rounds):
        for mode in MODES:
            with tempfile.TemporaryDirectory() as scratch:
                seconds = run(mode, Path(scratch), plan)
            outside[mode] += [t for i, t in enumerate(seconds) if i not in near]
            inside[mode] += [seconds[i] for i in window[1:]]
            first[mode].append(seconds[window[0]])
    return Times(*({mode: statistics.median(times[mode]) for mode in MODES} for times in (outside, inside, first)))


def run(mode: str, folder: Path, plan: Plan) -> list[float]:
    """Run one mode in a process of its own; the seconds of its iterations."""
    from precdiag.collect import collect
    from precdiag.collection import SideCommand
    from precdiag.session import Request, parse_window, write_session

    times = folder / "times.json"
    words = [sys.executable, __file__, "--times", str(times), "--iterations", str(plan.iterations)]
    request = Request(steps=parse_window(plan.window)[0], level=plan.level, task=plan.task)
    if mode == "precdiag":
        collection = collect(folder / "run", request, {"candidate": SideCommand(tuple(words))}, quiet=True)
        assert collection.status == 0, collection.sides[0].proof.reason
    else:
        if mode == "by hand":
            write_session(folder / "run", request, side="hand", identity="benchmark")
            words += ["--config", str(folder / "run" / "msprobe.json")]
        subprocess.run(words, check=True, capture_output=True)
    seconds: list[float] = json.loads(times.read_text())
    return seconds


def main() -> int:
    """Run the rounds and print the table; 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Plan):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.add_argument("--times", help=argparse.SUPPRESS)
    parser.add_argument("--config", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.times:
        child(options)
        return 0
    plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
    times = measure(plan)
    print(f"{plan.level} {plan.task}, median of {plan.rounds} rounds, ms an iteration")
    print(f"{'':10}{'outside':>10}{'inside':>10}{'first of the window':>22}")
    for mode in MODES:
        row = [1000 * column[mode] for column in (times.outside, times.inside, times.first)]
        print(f"{mode:10}{row[0]:10.2f}{row[1]:10.2f}{row[2]:22.2f}")
    print(f"outside the window against the plain script: {times.over:+.1%} (allowed {OUTSIDE_ALLOWED:.0%})")
    print(f"inside the window against instrumenting by hand: {times.against:+.1%} (allowed {INSIDE_ALLOWED:.0%})")
    return int(times.over > OUTSIDE_ALLOWED or times.against > INSIDE_ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
