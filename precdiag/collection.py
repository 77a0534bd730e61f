"""What a collection came to, as values and as collection.json: sides, differences, switches, checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from precdiag.collected import COLLECTION, read_collection
from precdiag.environment import (
    DETERMINISTIC_TORCH,
    DETERMINISTIC_VARIABLES,
    Difference,
    SwitchRow,
    differences,
    git_state,
    switch_table,
)
from precdiag.hook import injected
from precdiag.launch import Ended
from precdiag.proof import Proof
from precdiag.session import ATTEMPTS, DUMP, Request, write_json

SCHEMA = "precdiag.collect/1"
LOG = "log.txt"

# What each node's launcher came to, where several write into one collection.
NODE_RESULTS = "node-*.json"

# Our own failure, "exited 0 but collected nothing" included (env and docker use the same number).
OWN_FAILURE = 125

Side = Literal["baseline", "candidate"]
SIDES: tuple[Side, Side] = ("baseline", "candidate")


@dataclass(frozen=True)
class SideCommand:
    """What one side runs: words, where, and variables on top of ours."""

    words: tuple[str, ...]
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SideResult:
    """How one side ended and what it proves."""

    side: str
    folder: Path
    command: SideCommand
    ended: Ended
    proof: Proof

    @property
    def verified(self) -> bool:
        """True where the side ran to its end and its evidence is whole."""
        return self.ended.status == 0 and self.proof.complete

    @cached_property
    def facts(self) -> dict[str, Any] | None:
        """What can change numbers: what its first rank, git and the start of each rank say; None without a receipt."""
        lead = self.proof.lead
        if lead is None:
            return None
        return {**lead, "git": git_state(self.command.cwd), "starts": _starts(self.proof)}


@dataclass(frozen=True)
class CheckResult:
    """What --check-determinism or --check-observer came to: `found` is None where it could not be known."""

    check: Literal["determinism", "observer"]
    found: bool | None
    text: str


@dataclass(frozen=True)
class Collection:
    """Both sides (or the one that was run), what differs between them, and what was found by a check."""

    folder: Path
    request: Request
    sides: tuple[SideResult, ...]
    differences: tuple[Difference, ...]
    switches: tuple[SwitchRow, ...]
    checks: tuple[CheckResult, ...]
    notes: tuple[str, ...]
    pair: bool = False  # both sides are known: they can be compared

    @property
    def status(self) -> int:
        """0 if every side is verified; the status of the first side that failed; 125 where only the evidence did."""
        failed = next((side.ended.status for side in self.sides if side.ended.status), 0)
        return failed or (0 if all(side.verified for side in self.sides) else OWN_FAILURE)


def conclude(
    folder: Path, request: Request, results: tuple[SideResult, ...], checks: tuple[CheckResult, ...]
) -> Collection:
    """Set the sides' environments side by side; a side collected earlier into `folder` speaks from collection.json."""
    facts = {side.side: side.facts for side in results}
    for side, entry in read_collection(folder).get("sides", {}).items():
        facts.setdefault(side, entry["environment"])
    baseline, candidate = (facts.get(side) for side in SIDES)
    notes = []
    if request.deterministic:
        names = [*(f"{k}={v}" for k, v in DETERMINISTIC_VARIABLES.items()), *DETERMINISTIC_TORCH]
        notes.append(f"--deterministic sets {', '.join(names)}; dropout and everything else stay as they were")
    if not baseline or not candidate:
        return Collection(folder, request, results, (), (), checks, tuple(notes))
    found = tuple(differences(baseline, candidate))
    start = [each.name for each in found if each.kind == "start"]
    if start:
        more = f" and {len(start) - 1} more" if len(start) > 1 else ""
        notes.append(f"the sides do not start alike: {start[0]} differs{more}; look there before any call")
    return Collection(
        folder, request, results, found, tuple(switch_table(baseline, candidate)), checks, tuple(notes), pair=True
    )


def write_collection(collection: Collection) -> None:
    """Write collection.json."""
    write_json(collection.folder / COLLECTION, document(collection))


def document(collection: Collection) -> dict[str, Any]:
    """Build collection.json; a side collected earlier into the same folder keeps its entry."""
    earlier = read_collection(collection.folder).get("sides", {})
    sides = {**earlier, **{side.side: _side_json(side) for side in collection.sides}}
    return {
        "schema": SCHEMA,
        "verified": bool(sides) and all(side["verified"] for side in sides.values()),
        "request": asdict(collection.request),
        "sides": sides,
        "differences": [asdict(each) for each in collection.differences],
        "switches": [{**asdict(row), "differs": row.differs} for row in collection.switches],
        "checks": [asdict(each) for each in collection.checks],
        "notes": list(collection.notes),
    }


def settle(side: SideResult) -> None:
    """Let `dump/` be what was judged, for every other command to find: a restarted attempt's dump, or a foreign one.

    The first attempt's own dump goes to attempts/0.
    """
    own, judged = side.folder / DUMP, side.proof.dump
    if judged == own or not judged.is_dir():
        return
    if own.is_symlink():
        own.unlink()
    elif not any(own.iterdir()):
        own.rmdir()
    elif judged.parent.name == ATTEMPTS:
        own.rename(side.folder / ATTEMPTS / "0")
    else:
        return
    own.symlink_to(judged.absolute() if judged.parent.name != ATTEMPTS else Path(ATTEMPTS, judged.name))


def _starts(proof: Proof) -> dict[str, Any]:
    """What the first recorded step of each rank began with, in the attempt that is judged."""
    recorded = [r for r in reversed(proof.receipts) if r["steps"] and r["attempt"] == proof.attempt]
    return {"-" if r["rank"] is None else str(r["rank"]): r["steps"][0] for r in recorded}


def _side_json(side: SideResult) -> dict[str, Any]:
    hide = injected("_precdiag_evidence").hide
    return {
        "status": side.ended.status,
        "ended": side.ended.why,
        "verified": side.verified,
        "reason": side.proof.reason,
        "command": list(side.command.words),
        "cwd": str(side.command.cwd),
        "env": {name: value for name, value in side.command.env.items() if hide(name, value) == value},
        "dump": str(side.proof.dump),
        "log": str(side.folder / LOG),
        "environment": side.facts,
        "steps": [asdict(step) for step in side.proof.steps],
        "notes": list(side.proof.notes),
    }
