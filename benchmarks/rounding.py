"""What `compare` makes of a healthy port and of planted faults between two devices: right, silent or wrong.

    python benchmarks/rounding.py [--seeds 0,1,2] [--keep DIR]

Collects tests/data/scripts/two_devices.py with the real msprobe: bfloat16 and float32, L0 and mix, tensors and
statistics. The standard: never wrong, silent on a healthy port, in float32 every fault right. Exits 1 where it fails.
"""

import argparse
import sys
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from two_devices import PLANTED, RIGHT, SILENT, WRONG, collect, outcome

FAULTS = ("none", *PLANTED)


def measure(root: Path, seeds: list[int]) -> bool:
    """Collect and compare every combination, print the table, and tell whether the standard is met."""
    met = True
    print(f"{'dtype':<10}{'level':<7}{'task':<12}{'right':>7}{'silent':>8}{'wrong':>7}  not right")
    for dtype, level, task in product(("bfloat16", "float32"), ("L0", "mix"), ("tensor", "statistics")):
        counts: Counter[str] = Counter()
        others = []
        for seed in seeds:
            folder = root / dtype / level / task / str(seed)
            if not folder.is_dir():
                collect(folder, dtype, seed, level, task, FAULTS)
            for fault in FAULTS:
                found, row = outcome(folder, fault)
                counts[found] += 1
                met &= found != WRONG and (dtype == "bfloat16" or found == RIGHT)
                if found == WRONG or (found == SILENT and dtype == "float32"):
                    others.append(f"{fault}/{seed}: {found} {row}")
        numbers = "".join(f"{counts[word]:>{width}}" for word, width in ((RIGHT, 7), (SILENT, 8), (WRONG, 7)))
        print(f"{dtype:<10}{level:<7}{task:<12}{numbers}  {'; '.join(others)}", flush=True)
    return met


def main() -> None:
    """Measure, and exit with 1 where the standard is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--keep", type=Path, help="collect into this folder, and use what is there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        met = measure(given.keep or Path(scratch), [int(seed) for seed in given.seeds.split(",")])
    sys.exit(not met)


if __name__ == "__main__":
    main()
