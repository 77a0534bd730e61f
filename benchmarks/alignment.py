"""Compare two dumps in this process and print which share of the time alignment took.

python alignment.py BASELINE CANDIDATE
"""

import sys
import time
from pathlib import Path

from precdiag import compare as pipeline
from precdiag.judge import Policy
from precdiag.workers import Resources, available


def main() -> None:
    """Print the share as the last word."""
    spent = 0.0
    pair = pipeline.pair

    def timed(*arguments: object) -> object:
        nonlocal spent
        began = time.perf_counter()
        paired = pair(*arguments)
        spent += time.perf_counter() - began
        return paired

    pipeline.pair = timed
    began = time.perf_counter()
    baseline, candidate = map(Path, sys.argv[1:])
    pipeline.compare(baseline, candidate, Policy(), resources=Resources(available()))
    print(f"alignment {spent / (time.perf_counter() - began):.4f}")


if __name__ == "__main__":
    main()
