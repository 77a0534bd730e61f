"""Measure precdiag beside msprobe: the same inputs, one after the other, in one go.

    python benchmarks/bench.py [--only CASE …] [--repeat N] [--calls N] [--many N] [--layers N] [--batch N] [--work DIR]

Makes its inputs in --work on the first run (real msprobe dumps of gpt.py, and enlarged ones) and keeps them. Prints one
line a measurement as it is taken, then the table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import collect
import inputs
from measure import Run, in_turn, run

PYTHON = sys.executable
HERE = Path(__file__).parent
MSPROBE = Path(PYTHON).with_name("msprobe")
FOUND_OR_NOT = (0, 1)
MB, GB = 1 << 20, 1e9


@dataclass(frozen=True)
class Line:
    """One line of the table. `against` is msprobe; `target`: the ratio promised, and whether it holds."""

    work: str
    seconds: float
    memory: int
    rate: str = ""
    against: str = ""
    target: str = ""


@dataclass(frozen=True)
class Sizes:
    """How large the inputs are, and where they lie."""

    work: Path
    repeat: int
    calls: int
    many: int
    layers: int
    batch: int
    ranks: int
    length: int


def statistics(sizes: Sizes) -> Iterator[Line]:
    """Statistics of many calls: precdiag's verdict against msprobe's csv."""
    pattern = _pattern(sizes)
    for kind in inputs.KINDS:
        sides = inputs.enlarge_pair(sizes.work / f"statistics-{sizes.calls}-{kind}", pattern, sizes.calls, kind)
        rows = 2 * inputs.count_rows(sides[0])
        commands = {"precdiag": _precdiag(sides, "--no-cache"), "msprobe": _msprobe(sides, sizes)}
        runs = in_turn(commands, sizes.repeat, FOUND_OR_NOT)
        own, other = runs["precdiag"], runs["msprobe"]
        yield _line(f"statistics, {sizes.calls:,} calls a side, {kind}", own, rows=rows, other=other, least=20)
        memory = _met(own.bytes / other.bytes, most=1 / 3, of="of its memory")
        yield Line("  msprobe compare, csv", other.seconds, other.bytes, _rows(rows, other), target=memory)


def cached(sizes: Sizes) -> Iterator[Line]:
    """Comparing again with the index that a first run left."""
    sides = inputs.enlarge_pair(sizes.work / f"statistics-{sizes.calls}-late", _pattern(sizes), sizes.calls, "late")
    run(_precdiag(sides), FOUND_OR_NOT)
    runs = in_turn({"with": _precdiag(sides), "without": _precdiag(sides, "--no-cache")}, sizes.repeat, FOUND_OR_NOT)
    yield Line("compare again, index beside the dumps", runs["with"].seconds, runs["with"].bytes)
    yield Line("  --no-cache", runs["without"].seconds, runs["without"].bytes)


def many(sizes: Sizes) -> Iterator[Line]:
    """A million calls: in how much memory."""
    sides = inputs.enlarge_pair(sizes.work / f"statistics-{sizes.many}-late", _pattern(sizes), sizes.many, "late")
    only = run(_precdiag(sides, "--no-cache"), FOUND_OR_NOT)
    target = _met(only.bytes / (3 << 30), most=1, of="of 3 GB")
    yield Line(f"statistics, {sizes.many:,} calls a side, late", only.seconds, only.bytes, target=target)


def tensors(sizes: Sizes) -> Iterator[Line]:
    """Tensors: against msprobe, and against reading both sides and comparing bytes with numpy."""
    for kind in inputs.KINDS:
        sides = _tensor_pair(sizes, kind)
        files = inputs.tensor_files(sides[0])
        size = 2 * sum(file.stat().st_size for file in files)
        folders = [side / "dump_tensor_data" for side in sides]
        commands: dict[str, Sequence[str | Path]] = {
            "floor": [PYTHON, HERE / "floor.py", *folders],
            "precdiag": _precdiag(sides),
            "metrics": _precdiag(sides, "--no-arbiter"),
            "first": _precdiag(sides, "--first"),
            "msprobe": _msprobe(sides, sizes),
        }
        runs = in_turn(commands, sizes.repeat, FOUND_OR_NOT)
        own, floor, other = runs["precdiag"], runs["floor"], runs["msprobe"]
        title = f"tensors, {size / 2 / GB:.1f} GB and {len(files):,} files a side, {kind}"
        yield _line(title, own, size=size, other=other, least=12 if kind != "identical" else None)
        to_floor = _met(own.seconds / floor.seconds, most=1.5 if kind == "identical" else None, of="the floor")
        yield Line(
            "  floor: read and compare with numpy", floor.seconds, floor.bytes, _rate(size, floor), target=to_floor
        )
        yield Line("  msprobe compare, csv", other.seconds, other.bytes, _rate(size, other))
        memory = _met(own.bytes / (1 << 30), most=1, of="of 1 GB")
        yield Line("  precdiag's memory", own.seconds, own.bytes, target=memory)
        if kind != "identical":
            yield _line("  all metrics, no call replayed (--no-arbiter)", runs["metrics"], other=other, least=12)
            yield _line("  --first", runs["first"], other=other, least=None)


def first(sizes: Sizes) -> Iterator[Line]:
    """--first on tensors that differ from the first layer on."""
    sides = _tensor_pair(sizes, "everywhere", at=0)
    commands = {"first": _precdiag(sides, "--first"), "msprobe": _msprobe(sides, sizes)}
    runs = in_turn(commands, sizes.repeat, FOUND_OR_NOT)
    yield _line("--first, tensors that differ from layer 0 on", runs["first"], other=runs["msprobe"], least=30)


def nan(sizes: Sizes) -> Iterator[Line]:
    """`precdiag nan` against reading the dump and nothing else."""
    side = inputs.enlarge_pair(sizes.work / f"statistics-{sizes.calls}-late", _pattern(sizes), sizes.calls, "late")[0]
    reading = "import sys; from inputs import count_rows; from pathlib import Path; count_rows(Path(sys.argv[1]))"
    commands: dict[str, Sequence[str | Path]] = {
        "nan": [PYTHON, "-m", "precdiag", "nan", side, "--no-cache"],
        "read": [PYTHON, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r}); {reading}", side],
    }
    runs = in_turn(commands, sizes.repeat, FOUND_OR_NOT)
    ratio = _met(runs["nan"].seconds / runs["read"].seconds, most=1.3, of="reading alone")
    yield Line(f"nan, {sizes.calls:,} calls", runs["nan"].seconds, runs["nan"].bytes, target=ratio)
    yield Line("  reading alone", runs["read"].seconds, runs["read"].bytes)


def align(sizes: Sizes) -> Iterator[Line]:
    """The share of alignment where a thousand calls were inserted."""
    sides = inputs.insert_calls(sizes.work / f"inserted-{sizes.calls}", _pattern(sizes), sizes.calls, 1000)
    runs = [run([PYTHON, HERE / "alignment.py", *sides]) for _ in range(sizes.repeat)]
    shares = sorted(float(one.output.split()[-1]) for one in runs)
    target = _met(shares[len(shares) // 2], most=0.2, of="of the whole")
    yield Line("alignment, 1,000 insertions", runs[-1].seconds, runs[-1].bytes, target=target)


def ranks(sizes: Sizes) -> Iterator[Line]:
    """Many ranks of small dumps in one command."""
    pattern = inputs.collect_pair(sizes.work / "small", "statistics", "everywhere", 2, "--width=64", "--length=16")
    sides = inputs.copy_ranks(sizes.work / f"ranks-{sizes.ranks}", pattern, sizes.ranks, (sizes.ranks // 2,))
    for workers in dict.fromkeys((1, len(os.sched_getaffinity(0)))):
        runs = in_turn({"it": _precdiag(sides, f"--workers={workers}")}, sizes.repeat, FOUND_OR_NOT)
        rate = f"{sizes.ranks / runs['it'].seconds:.0f} ranks/s"
        yield Line(f"{sizes.ranks} ranks, {workers} workers", runs["it"].seconds, runs["it"].bytes, rate)


def collecting(sizes: Sizes) -> Iterator[Line]:
    """What collecting costs an iteration: outside the window and inside it, in CPU time."""
    times = collect.measure(collect.Plan(rounds=sizes.repeat))
    targets = {"outside": _met(1 + times.over, 1 + collect.OUTSIDE_ALLOWED, "the plain script")}
    targets["inside"] = _met(1 + times.against, 1 + collect.INSIDE_ALLOWED, "instrumenting by hand")
    for where, medians in (("outside", times.outside), ("inside", times.inside)):
        for mode in collect.MODES:
            if (where, mode) != ("inside", "plain"):
                target = targets[where] if mode == "precdiag" else ""
                yield Line(f"an iteration {where} the window, {mode}", medians[mode], 0, target=target)


CASES: dict[str, Callable[[Sizes], Iterator[Line]]] = {
    "statistics": statistics,
    "cached": cached,
    "many": many,
    "tensors": tensors,
    "first": first,
    "nan": nan,
    "align": align,
    "ranks": ranks,
    "collect": collecting,
}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--work", type=Path, default=HERE / "work")
    sizes = {"repeat": 3, "calls": 100_000, "many": 1_000_000, "layers": 12, "batch": 14, "ranks": 256, "length": 128}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    given = Sizes(chosen.work.absolute(), **{name: getattr(chosen, name) for name in sizes})
    lines: list[Line] = []
    for case in chosen.only:
        for line in CASES[case](given):
            lines.append(line)
            print(_text(line), flush=True)
    print(f"\n{_machine()}\n\n| work | time | memory | rate | against msprobe | against the target |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        print("| " + " | ".join(_cells(line)) + " |")


def _pattern(sizes: Sizes) -> Path:
    return inputs.collect_pair(sizes.work / "pattern", "statistics", "identical", 12)[0]


def _tensor_pair(sizes: Sizes, kind: inputs.Kind, at: int | None = None) -> tuple[Path, Path]:
    shape = (f"--batch={sizes.batch}", f"--length={sizes.length}")
    name = f"tensor-{kind}-{sizes.layers}x{sizes.batch}x{sizes.length}" + ("" if at is None else f"-at{at}")
    return inputs.collect_pair(sizes.work / name, "tensor", kind, sizes.layers, *shape, at=at)


def _precdiag(sides: Sequence[Path], *options: str) -> list[str | Path]:
    return [PYTHON, "-m", "precdiag", "compare", *sides, *options]


def _msprobe(sides: Sequence[Path], sizes: Sizes) -> list[str | Path]:
    out = sizes.work / "msprobe"
    shutil.rmtree(out, ignore_errors=True)
    return [MSPROBE, "compare", "-tp", sides[1].parent, "-gp", sides[0].parent, "-o", out]


def _line(
    work: str, own: Run, *, other: Run, least: float | None, rows: int | None = None, size: int | None = None
) -> Line:
    ratio = other.seconds / own.seconds
    met = "" if least is None else f">= {least:g}: {'met' if ratio >= least else 'NOT met'}"
    rate = _rows(rows, own) if rows else _rate(size, own) if size else ""
    return Line(work, own.seconds, own.bytes, rate, f"{ratio:.1f} times faster", met)


def _met(ratio: float, most: float | None, of: str) -> str:
    promised = "" if most is None else f", <= {most:.3g}: {'met' if ratio <= most else 'NOT met'}"
    return f"{ratio:.2f} {of}{promised}"


def _rows(rows: int, of: Run) -> str:
    return f"{rows / of.seconds / 1e3:,.0f} k rows/s"


def _rate(size: int, of: Run) -> str:
    return f"{size / of.seconds / GB:.2f} GB/s"


def _cells(line: Line) -> list[str]:
    memory = f"{line.memory / MB:,.0f} MB" if line.memory else ""
    time = f"{line.seconds:.2f} s" if line.seconds >= 0.5 else f"{1000 * line.seconds:.1f} ms"
    return [line.work, time, memory, line.rate, line.against, line.target]


def _text(line: Line) -> str:
    return "; ".join(cell for cell in _cells(line) if cell)


def _machine() -> str:
    names = ("mindstudio-probe", "torch", "numpy", "pandas", "msgspec")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}, {versions}"


if __name__ == "__main__":
    main()
