"""Make the benchmarks' inputs: real msprobe dumps of gpt.py, and one of them enlarged in msprobe's format."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from precdiag.collect import SideCommand, collect
from precdiag.layout import open_run
from precdiag.session import Request

SCRIPT = Path(__file__).with_name("gpt.py")
Kind = Literal["identical", "late", "everywhere"]
KINDS: tuple[Kind, ...] = ("identical", "late", "everywhere")
Task = Literal["statistics", "md5", "tensor"]

_NUMBERS = ("Max", "Min", "Mean", "Norm")
_SLOT = '"\\u0000"'
_COUNTER = re.compile(r"(?P<call>[A-Za-z]+\.\w+)\.(?P<number>\d+)\.(?P<phase>forward|backward)\Z")
# Of the calls, how many at the end differ in a pair that differs late.
_LATE = 0.01
_CHANGE = 1.001


def collect_pair(
    folder: Path, task: Task, kind: Kind, layers: int, *sizes: str, at: int | None = None
) -> tuple[Path, Path]:
    """Collect a pair of runs of gpt.py with the real msprobe; return the two dumps' folders. Kept if it is there.

    identical: the same run twice; late: the last layer's weight scaled; everywhere: that of the middle one, or of
    layer `at`.
    """
    if not (folder / "done").exists():
        plain = (sys.executable, str(SCRIPT), f"--layers={layers}", *sizes)
        scaled = {
            "identical": (),
            "late": (f"--scale-layer={layers - 1}",),
            "everywhere": (f"--scale-layer={layers // 2 if at is None else at}",),
        }
        request = Request(
            task="tensor" if task == "tensor" else "statistics", summary="md5" if task == "md5" else "statistics"
        )
        commands = {"baseline": SideCommand(plain), "candidate": SideCommand((*plain, *scaled[kind]))}
        collection = collect(folder, request, commands, force=True, quiet=True)
        for side in collection.sides:
            if not side.verified:
                raise SystemExit(f"{side.folder}: {side.proof.reason}")
        (folder / "done").touch()
    baseline, candidate = (open_run(folder / side).parts[0].folder for side in ("baseline", "candidate"))
    return baseline, candidate


def enlarge_pair(folder: Path, pattern: Path, calls: int, kind: Kind) -> tuple[Path, Path]:
    """Write a pair of statistics dumps of at least `calls` calls after the dump in `pattern`. Kept if it is there.

    The pattern's calls follow one another with their counters running on and other numbers each time, as when a run
    never calls step(). identical: byte for byte; late: the last 1 % of the calls differ; everywhere: every call.
    """
    sides = folder / "baseline" / "step0" / "rank0", folder / "candidate" / "step0" / "rank0"
    if (folder / "done").exists():
        return sides
    shutil.rmtree(folder, ignore_errors=True)
    data, rest = _read(pattern)
    copies = -(-calls // len(data))
    changed = {"identical": copies, "late": int(copies * (1 - _LATE)), "everywhere": 0}[kind]
    rename = _renamer(data)
    for side, first_changed in zip(sides, (copies, changed), strict=True):
        side.mkdir(parents=True)
        _write_dump(side, copy.deepcopy(data), rest, copies, first_changed, rename)
        _write_stacks(side, pattern, copies, rename)
        (side / "construct.json").write_text("{}", encoding="utf-8")
    (folder / "done").touch()
    return sides


def insert_calls(folder: Path, pattern: Path, calls: int, count: int) -> tuple[Path, Path]:
    """Write an identical pair, then put `count` more calls into the candidate, evenly spread. Kept if it is there."""
    fresh = not (folder / "done").exists()
    sides = enlarge_pair(folder, pattern, calls, "identical")
    if fresh:
        path = sides[1] / "dump.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        every = max(1, len(document["data"]) // count)
        data: dict[str, Any] = {}
        for number, (name, call) in enumerate(document["data"].items()):
            data[name] = call
            if number % every == 0:
                data[f"Torch.inserted.{number // every}.forward"] = call
        document["data"] = data
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return sides


def copy_ranks(folder: Path, pattern: tuple[Path, Path], ranks: int, differing: tuple[int, ...]) -> tuple[Path, Path]:
    """Copy one pair of dumps to so many ranks; only `differing` ones get the candidate's, the others are equal."""
    for side in ("baseline", "candidate"):
        for rank in range(ranks):
            source = pattern[1] if side == "candidate" and rank in differing else pattern[0]
            target = folder / side / "step0" / f"rank{rank}"
            if not target.exists():
                shutil.copytree(source, target)
    return folder / "baseline", folder / "candidate"


def count_rows(dump: Path) -> int:
    """Count the tensors and arguments of a dump as precdiag does."""
    from precdiag.dump import read_dump

    return len(read_dump(open_run(dump).parts[0]).rows)


def tensor_files(dump: Path) -> list[Path]:
    """Return the tensor files of a dump, sorted by name."""
    return sorted((dump / "dump_tensor_data").iterdir())


def _read(pattern: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    document = json.loads((pattern / "dump.json").read_text(encoding="utf-8"))
    data = document.pop("data")
    kept = {name: call for name, call in data.items() if _COUNTER.match(name)}
    return kept, document


def _renamer(data: dict[str, Any]) -> Callable[[str, int], str]:
    """Return name, turn → the name with its counter moved on by what the copies before it used up."""
    used: Counter[str] = Counter()
    for name in data:
        match = _COUNTER.match(name)
        if match:
            used[match["call"]] = max(used[match["call"]], int(match["number"]) + 1)

    def rename(name: str, turn: int) -> str:
        match = _COUNTER.match(name)
        if match is None:
            return name
        return f"{match['call']}.{int(match['number']) + turn * used[match['call']]}.{match['phase']}"

    return rename


def _write_dump(
    side: Path,
    data: dict[str, Any],
    header: dict[str, Any],
    copies: int,
    first_changed: int,
    rename: Callable[[str, int], str],
) -> None:
    """Write dump.json as json.dump(…, indent=1) would, one copy of the pattern after the other."""
    templates = []
    numbers: list[float] = []
    for name, call in data.items():
        taken = list(_take_numbers(call))
        text = json.dumps(call, indent=1).replace("\n", "\n  ").replace("%", "%%").replace(_SLOT, "%r")
        templates.append((name, text, slice(len(numbers), len(numbers) + len(taken))))
        numbers += taken
    base = np.array(numbers)
    generator = np.random.default_rng(0)
    with (side / "dump.json").open("w", encoding="utf-8") as file:
        head = json.dumps(header, indent=1).removesuffix("\n}")
        file.write(head + ',\n "data": {')
        separator = "\n  "
        for turn in range(copies):
            values = base * generator.uniform(0.5, 2.0, size=len(base)) * (_CHANGE if turn >= first_changed else 1.0)
            shown = values.tolist()
            for name, text, place in templates:
                file.write(f'{separator}"{rename(name, turn)}": {text % tuple(shown[place])}')
                separator = ",\n  "
        file.write("\n }\n}")


def _take_numbers(value: Any) -> Iterator[float]:
    """Yield the float statistics of a call in the order of its text, and leave a slot in the place of each."""
    if isinstance(value, list):
        for item in value:
            yield from _take_numbers(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in _NUMBERS and isinstance(item, float) and np.isfinite(item):
                yield item
                value[key] = "\0"
            else:
                yield from _take_numbers(item)


def _write_stacks(side: Path, pattern: Path, copies: int, rename: Callable[[str, int], str]) -> None:
    stacks = json.loads((pattern / "stack.json").read_text(encoding="utf-8"))
    for entry in stacks.values():
        entry[0] = [rename(name, turn) for turn in range(copies) for name in entry[0]]
    (side / "stack.json").write_text(json.dumps(stacks, indent=1), encoding="utf-8")
