"""Which runs of calls replace one another: a list kept as data, and whether two runs are on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_DATA = Path(__file__).with_name("replacements.yaml")
# Views, casts and copies: they compute nothing and can stand anywhere in a run.
LAYOUT = frozenset(
    {"view", "reshape", "permute", "transpose", "t", "contiguous", "to", "type", "type_as", "float", "half", "bfloat16"}
    | {"flatten", "unflatten", "chunk", "split", "expand", "expand_as", "unsqueeze", "squeeze", "repeat", "clone"}
    | {"repeat_interleave", "getitem", "detach", "unbind", "narrow", "select", "split_with_sizes", "double", "movedim"}
)
_SPELLINGS = {
    **dict.fromkeys(("truediv", "itruediv", "rtruediv", "true_divide", "divide"), "div"),
    **dict.fromkeys(("radd", "iadd"), "add"),
    **dict.fromkeys(("rmul", "imul", "multiply"), "mul"),
    **dict.fromkeys(("rsub", "isub", "subtract"), "sub"),
    **dict.fromkeys(("mm", "bmm", "einsum", "baddbmm", "addmm"), "matmul"),
    **dict.fromkeys(("_softmax", "softmax_"), "softmax"),
    "concat": "cat",
    "concatenate": "cat",
}


@dataclass(frozen=True)
class Replacement:
    """One entry of the list: operations that do in one call what a run of `needs` (and `may`) does."""

    name: str
    fused: frozenset[str]
    needs: tuple[frozenset[str], ...]
    may: frozenset[str]
    note: str = ""

    def unfused(self, operations: Counter[str]) -> bool:
        """Tell whether a run holds what is needed, each as often as it is."""
        needed = Counter(self.needs)
        return all(sum(operations[name] for name in names) >= count for names, count in needed.items())

    def allows(self, operation: str) -> bool:
        """Tell whether an operation can stand in an unfused run."""
        return operation in self.may or any(operation in names for names in self.needs)


def canonical(operation: str) -> str:
    """Return an operation's name as the list spells it: `__iadd__`, `add_` and `add` are one."""
    bare = operation.strip("_")
    return _SPELLINGS.get(bare, bare)


@cache
def known_replacements() -> tuple[Replacement, ...]:
    """Return the list that comes with precdiag."""
    return read_replacements(yaml.safe_load(_DATA.read_text(encoding="utf-8")))


def read_replacements(entries: Mapping[str, Mapping[str, Any]]) -> tuple[Replacement, ...]:
    """Read entries as replacements.yaml documents them. Raises ValueError for anything else."""
    return tuple(_entry(str(name), entry) for name, entry in entries.items())


def name_of(left: Sequence[str], right: Sequence[str], known: Iterable[Replacement]) -> tuple[str, str] | None:
    """Return what two runs of operations are replacements for, and the note on it; None where none is known.

    One run holds the fused call, the other the run that it stands for, or nothing where msprobe does not hook the
    fused call (then everything in the run must belong to it). A gap can hold several: `rotary, attention`.
    """
    sides = [
        Counter(operation for name in side if (operation := canonical(name)) not in LAYOUT) for side in (left, right)
    ]
    found = [entry for entry in known if _matches(entry, sides[0], sides[1]) or _matches(entry, sides[1], sides[0])]
    if not found:
        return None
    return ", ".join(entry.name for entry in found), " ".join(entry.note for entry in found if entry.note)


def _matches(entry: Replacement, one: Counter[str], other: Counter[str]) -> bool:
    if not one.keys() & entry.fused:
        return not one and bool(other) and entry.unfused(other) and all(map(entry.allows, other))
    return entry.unfused(other) or bool(other.keys() & entry.fused)


def _entry(name: str, entry: Mapping[str, Any]) -> Replacement:
    unknown = set(entry) - {"fused", "needs", "may", "note"}
    if unknown or "fused" not in entry or "needs" not in entry:
        raise ValueError(f"{name}: expected fused, needs, may and note, found {', '.join(map(str, entry))}")
    return Replacement(
        name=name,
        fused=frozenset(canonical(str(each)) for each in entry["fused"]),
        needs=tuple(frozenset(map(canonical, re.split(r"\s*\|\s*", str(each)))) for each in entry["needs"]),
        may=frozenset(canonical(str(each)) for each in entry.get("may") or ()),
        note=str(entry.get("note") or ""),
    )
