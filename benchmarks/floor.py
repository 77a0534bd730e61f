"""The floor of a tensor comparison: read both sides and compare the bytes with numpy, and nothing else.

python floor.py BASELINE CANDIDATE      (two folders of tensor files)
"""

import sys
from pathlib import Path

import numpy as np


def main() -> None:
    """Print how many files hold the same bytes."""
    baseline, candidate = map(Path, sys.argv[1:])
    equal = 0
    for file in sorted(baseline.iterdir()):
        left = np.fromfile(file, dtype=np.uint8)
        right = np.fromfile(candidate / file.name, dtype=np.uint8)
        equal += np.array_equal(left, right)
    print(f"{equal} files are equal")


if __name__ == "__main__":
    main()
