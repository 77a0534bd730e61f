"""What an iteration of gpt.py takes: plain, instrumented by hand, under precdiag; inside and outside the window."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from precdiag.session import Request, msprobe_config, write_json

HERE = Path(__file__).parent
SIZES = ("--layers=4", "--width=128", "--length=64", "--batch=2")
# The first iterations warm up; one in the middle is collected, what is behind it is outside the window again.
ITERATIONS, COLLECTED, WARM = 12, 6, 3
_SECONDS = re.compile(r"iteration (\d+): loss [\d.]+, ([\d.]+) s")


def seconds_an_iteration(work: Path, repeat: int) -> Iterator[tuple[str, str, float]]:
    """Yield way, where (`collected`, `outside`) and the median seconds of an iteration there."""
    script = [sys.executable, HERE / "gpt.py", *SIZES, f"--iterations={ITERATIONS}"]
    window = [f"--step={COLLECTED}", f"--out={work / 'precdiag'}", "--force"]
    ways: dict[str, list[str | Path]] = {
        "plain script": script,
        "instrumented by hand": [sys.executable, HERE / "byhand.py", *SIZES, f"--iterations={ITERATIONS}"],
        "precdiag collect": [sys.executable, "-m", "precdiag", "collect", *window, "--", *script],
    }
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / "config.json", msprobe_config(Request(steps=(COLLECTED,)), work / "byhand"))
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeat):
        for way, command in ways.items():
            for iteration, seconds in _iterations(command, work):
                where = "collected" if iteration == COLLECTED and way != "plain script" else "outside"
                if iteration >= WARM:
                    times.setdefault((way, where), []).append(seconds)
    for (way, where), several in times.items():
        yield way, where, statistics.median(several)


def _iterations(command: list[str | Path], work: Path) -> Iterator[tuple[int, float]]:
    ended = subprocess.run(list(map(str, command)), cwd=work, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{command} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    for number, seconds in _SECONDS.findall(ended.stdout + ended.stderr):
        yield int(number), float(seconds)
