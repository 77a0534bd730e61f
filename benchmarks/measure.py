"""Run a command and measure it: wall time, and the peak memory of its whole process tree."""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Proportional set size is read so often; reading it costs about a millisecond per 100 MB.
_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class Run:
    """One run of a command. `bytes`: the peak of the tree's proportional set size, shared pages counted once."""

    seconds: float
    bytes: int
    status: int
    output: str


def run(command: Sequence[str | Path], allowed: tuple[int, ...] = (0,)) -> Run:
    """Run a command to its end; SystemExit with its output where its status is none of `allowed`."""
    began = time.perf_counter()
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        watch = _Watch(process.pid)
        watch.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - began
        watch.ended.set()
        watch.join()
    if process.returncode not in allowed:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{output[-2000:]}")
    return Run(seconds, watch.peak, process.returncode, output)


def in_turn(commands: dict[str, Sequence[str | Path]], repeat: int, allowed: tuple[int, ...]) -> dict[str, Run]:
    """Run the commands one after the other, so many times over; return each one's median time and largest memory."""
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            runs[name].append(run(command, allowed))
    return {
        name: Run(
            statistics.median(one.seconds for one in several),
            max(one.bytes for one in several),
            several[0].status,
            several[0].output,
        )
        for name, several in runs.items()
    }


class _Watch(threading.Thread):
    """Sample the memory of a process and its descendants until told to end."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.peak = 0
        self._root = root

    def run(self) -> None:
        while not self.ended.wait(_SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(map(_memory, _tree(self._root))))


def _tree(root: int) -> list[int]:
    found = [root]
    for process in found:  # grows while it is walked
        try:
            threads = list(Path(f"/proc/{process}/task").iterdir())
            found += [int(child) for thread in threads for child in (thread / "children").read_text().split()]
        except OSError:
            continue
    return found


def _memory(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
