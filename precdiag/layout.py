"""Find what msprobe dumped: the stages, steps and ranks below a folder, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precdiag.errors import UnreadableError

DUMP_FILE = "dump.json"
TENSOR_FOLDER = "dump_tensor_data"
# run/step_N/stage/stepM/rankR, as verl writes below a run folder, is the deepest layout known.
DEEPEST = 6

_STEP = re.compile(r"step(\d+)\Z")
_RANK = re.compile(r"rank(\d*)\Z")
_PROC = re.compile(r"proc(\d+)\Z")


@dataclass(frozen=True)
class Part:
    """One dumped step of one rank: where it stands in the run, and its folder.

    `stage` is what stands between the run folder and the step (`step_3/actor`, as verl writes), "" without one.
    `step` and `rank` are None where the path does not say (a copy; a single process). `peers`: (own, other) numbers
    of ranks that are paired by hand, this side's and what they are called in the comparison.
    """

    folder: Path
    stage: str = ""
    step: int | None = None
    rank: int | None = None
    peers: tuple[tuple[int, int], ...] = ()

    @property
    def at(self) -> tuple[str, int]:
        """The stage and step, for telling which parts precede which."""
        return self.stage, -1 if self.step is None else self.step

    @property
    def label(self) -> str:
        """How the part is named to people: `actor step 3 rank 1`."""
        step = "step -" if self.step is None else f"step {self.step}"
        rank = "" if self.rank is None else f" rank {self.rank}"
        return f"{self.stage} {step}{rank}".strip()


@dataclass(frozen=True)
class Run:
    """A dump as the user named it: the path, and its parts in order of stage, step and rank.

    `one_step`: the path itself is a step or something in it (or a copy that names no step), not a folder of steps.
    """

    path: Path
    parts: tuple[Part, ...]
    one_step: bool = False


def open_run(path: Path) -> Run:
    """Find the dumped steps and ranks under `path`: a run, stage, step, rank or proc folder, or a dump.json.

    Raises UnreadableError where there is no such path or nothing that msprobe dumped under it.
    """
    if not path.exists():
        raise UnreadableError(f"{path}: no such file or folder", hint="give a run, step or rank folder, or a dump.json")
    if path.is_file():
        if path.name != DUMP_FILE:
            raise UnreadableError(f"{path}: expected {DUMP_FILE} or a folder that holds one")
        root = path.parent
    else:
        root = path
        inner = root / "dump"
        if inner.is_dir() and not (root / DUMP_FILE).exists() and not any(map(_is_step, root.iterdir())):
            root = inner
    parts = sorted(_find_parts(root), key=part_order)
    if not parts:
        raise UnreadableError(
            f"{path}: no {DUMP_FILE} in it or below it",
            hint="expected step{N}/rank{R}/dump.json or step{N}/proc{PID}/dump.json, as msprobe writes them",
        )
    inside = (name for part in parts for name in part.folder.relative_to(root).parts)
    return Run(path, tuple(parts), one_step=not any(map(_STEP.match, inside)))


def _is_step(folder: Path) -> bool:
    return _STEP.match(folder.name) is not None and folder.is_dir()


def _find_parts(root: Path) -> Iterator[Part]:
    """Yield the parts below `root`; step and rank may also stand in the names of root and its parents."""
    absolute = root.resolve()
    for folder in _dump_folders(root, DEEPEST):
        inside = folder.relative_to(root).parts
        outside = (absolute.parent.name, absolute.name)
        yield _part_of(folder, outside, inside)


def _dump_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / DUMP_FILE).exists() or _RANK.match(folder.name) or _PROC.match(folder.name):
        yield folder
        return
    children = [c for c in folder.iterdir() if c.name != TENSOR_FOLDER and not c.name.startswith(".") and c.is_dir()]
    if _STEP.match(folder.name) and not children:
        yield folder  # a step that was begun and left nothing: to be reported, not passed over
    elif depth:
        for child in children:
            yield from _dump_folders(child, depth - 1)


def _part_of(folder: Path, outside: tuple[str, ...], inside: tuple[str, ...]) -> Part:
    names = list(outside + inside)
    rank: int | None = None
    if (match := _RANK.match(names[-1])) or _PROC.match(names[-1]):
        rank = int(match[1]) if match and match[1] else None
        names.pop()
    step: int | None = None
    if names and (match := _STEP.match(names[-1])):
        step = int(match[1])
        names.pop()
    stage = "/".join(names[len(outside) :])
    return Part(folder=folder, stage=stage, step=step, rank=rank)


def part_order(part: Part) -> tuple[Any, ...]:
    """Sort key of a part: stage, step and rank by number (rank10 after rank9)."""
    stage = tuple((0, int(t), "") if t.isdigit() else (1, 0, t) for t in re.split(r"(\d+)", part.stage))
    step = -1 if part.step is None else part.step
    rank = -1 if part.rank is None else part.rank
    return (stage, step, rank, str(part.folder))
