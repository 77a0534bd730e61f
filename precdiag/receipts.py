"""Judge what one side's collection left: every step asked for, of every rank, by receipts first and files second."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from precdiag.session import DUMP, INJECT, RECEIPTS, SETTINGS

State = Literal["complete", "unfinished", "empty", "missing"]
Receipt = Mapping[str, Any]

# Said where nothing loaded the hook; INJECTION.md lists the same causes.
NOT_STARTED = (
    "nothing started: no Python process below the command loaded the hook (python -I, -E or -S, env -i, ssh, srun "
    "without export, docker, a script that sets PYTHONPATH itself, or another tool's sitecustomize before ours)"
)


@dataclass(frozen=True)
class Step:
    """One step of one rank: `calls` as counted, and why it is not complete."""

    step: int | None
    rank: int | None
    calls: int
    state: State
    why: str | None = None
    iteration: int | None = None


@dataclass(frozen=True)
class Proof:
    """What one side's collection proves. `reason` is None where every step of every rank is complete."""

    dump: Path
    steps: tuple[Step, ...]
    reason: str | None
    hint: str | None
    notes: tuple[str, ...]
    receipts: tuple[Receipt, ...]

    @property
    def complete(self) -> bool:
        """True where the evidence is whole."""
        return self.reason is None

    @property
    def lead(self) -> Receipt | None:
        """The receipt that speaks for the side: the lowest rank that recorded something."""
        ranked = sorted(self.receipts, key=lambda r: (not r["steps"], r["rank"] or 0, r["started"]))
        return next((r for r in ranked if "environment" in r), None)


def prove(folder: Path) -> Proof:
    """Judge the side in `folder` (session.json, receipts/, dump/).

    A step is complete where the process said so and the dump holds as many calls as it said. Without receipts (a dump
    made by hand) the files alone decide, and that is noted.
    """
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    receipts = read_receipts(folder)
    foreign = next((r["foreign"] for r in receipts if r.get("foreign")), None)
    if foreign is not None and not any(r["state"] == "conflict" for r in receipts):
        return _prove_foreign(foreign, receipts)
    dump = folder / DUMP
    attempts = {_attempt(r) for r in receipts}
    last = [r for r in receipts if _attempt(r) == _last_attempt(receipts, r)]
    takers = _participants(last, settings["ranks"])
    steps = tuple(step for taker in takers for step in _steps_of(taker, settings, dump))
    steps += tuple(_absent_ranks(takers, settings))
    notes = [note for r in receipts for note in r["notes"]]
    if len(attempts) > 1:
        notes.append(f"restarted {len(attempts) - 1} times: the last attempt of each rank is judged")
    beside = sorted({name for r in receipts for name in r["beside"]})
    if beside:
        notes.append(f"called before the model, not recorded: {', '.join(beside)}")
    reason, hint = _reason(steps, receipts, takers, settings, folder)
    return Proof(dump, _ordered(steps), reason, hint, tuple(dict.fromkeys(notes)), tuple(receipts))


def read_receipts(folder: Path) -> list[Receipt]:
    """Read every receipt of the side's session, in the order in which the processes started."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / RECEIPTS).glob("*.json")]
    return sorted(found, key=lambda receipt: float(receipt["started"]))


def judge_files(dump: Path, steps: Iterable[int]) -> list[Step]:
    """Judge a dump by its files alone, as far as they allow: a dump that parses may still be a head of one."""
    judged = []
    for step in steps:
        parts = sorted((dump / f"step{step}").glob("*/dump.json"))
        if not parts:
            judged.append(Step(step, None, 0, "missing", "no dump.json"))
        for part in parts:
            name = part.parent.name.removeprefix("rank")
            calls = _calls_in(part)
            state: State = "unfinished" if calls is None else "complete" if calls else "empty"
            why = "dump.json cannot be read" if calls is None else None
            judged.append(Step(step, int(name) if name.isdigit() else None, calls or 0, state, why))
    return judged


def progress_lines(folder: Path) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield (key, line) for every step finished so far, for the live report."""
    for receipt in read_receipts(folder):
        rank = "" if receipt["rank"] is None else f" rank {receipt['rank']}"
        for step in receipt["steps"]:
            if step["state"] == "complete":
                yield (
                    (receipt["pid"], step["step"]),
                    f"{folder.name}{rank}: step {step['step']} collected, {step['calls']:,} calls",
                )


def _prove_foreign(foreign: Mapping[str, Any], receipts: list[Receipt]) -> Proof:
    dump = Path(foreign.get("dump_path") or "")
    wanted = foreign.get("step") or sorted(
        int(path.name.removeprefix("step")) for path in dump.glob("step*") if path.name[4:].isdigit()
    )
    steps = judge_files(dump, wanted)
    notes = (f"the script's own PrecisionDebugger wrote {dump}: judged by its files alone, it left no receipts",)
    bad = next((step for step in steps if step.state != "complete"), None)
    reason = hint = None
    if bad is not None or not steps:
        reason = f"the script's own PrecisionDebugger left nothing whole in {dump}"
        hint = f"check its config {foreign.get('config_path')}"
    return Proof(dump, tuple(steps), reason, hint, notes, tuple(receipts))


def _attempt(receipt: Receipt) -> int:
    return int(receipt.get("attempt") or 0)


def _last_attempt(receipts: list[Receipt], receipt: Receipt) -> int:
    return max(_attempt(r) for r in receipts if r["rank"] == receipt["rank"])


def _participants(receipts: list[Receipt], ranks: list[int]) -> list[Receipt]:
    """The processes whose steps are expected: ranks, or single processes (those that recorded, if any did)."""
    attached = [r for r in receipts if r["state"] in ("attached", "failed", "conflict")]
    ranked = [r for r in attached if r["rank"] is not None]
    if ranked:
        return [r for r in ranked if not ranks or r["rank"] in ranks]
    recording = [r for r in attached if r["steps"]]
    return recording or attached


def _steps_of(receipt: Receipt, settings: Mapping[str, Any], dump: Path) -> Iterator[Step]:
    said = {entry["step"]: entry for entry in receipt["steps"]}
    for step, iteration in _wanted(receipt, settings):
        entry = said.get(step)
        if entry is None:
            yield Step(step, receipt["rank"], 0, "missing", "never reached", iteration)
        else:
            yield _judge_entry(entry, receipt, dump)


def _wanted(receipt: Receipt, settings: Mapping[str, Any]) -> list[tuple[int | None, int | None]]:
    offset = receipt.get("offset")
    if settings["iterations"]:
        return [(None if offset is None else n - offset, n) for n in settings["iterations"]]
    return [(step, None) for step in settings["steps"]]


def _judge_entry(entry: Mapping[str, Any], receipt: Receipt, dump: Path) -> Step:
    rank, said = receipt["rank"], int(entry["calls"])

    def judged(state: State, why: str | None = None) -> Step:
        return Step(entry["step"], rank, said, state, why, entry.get("iteration"))

    if entry["state"] != "complete":
        return judged("unfinished", "the process ended inside this step")
    if said == 0:
        return judged("empty", "no call was recorded: scope, list or level leave nothing")
    file = _dump_file(dump / f"step{entry['step']}", receipt)
    if file is None:
        return judged("missing", "the process reported the step, but its dump.json is not there")
    found = _calls_in(file)
    if found != said:
        return judged("unfinished", f"dump.json holds {found if found is not None else 'no'} calls of {said}")
    absent = _absent_tensor(file)
    if absent is not None:
        return judged("unfinished", f"the tensor file {absent} is missing")
    return judged("complete")


def _dump_file(folder: Path, receipt: Receipt) -> Path | None:
    # 26.x: rank{R} or proc{PID}; 8.x and 1.x name a single process's folder `rank`.
    names = ["rank", f"proc{receipt['pid']}"] if receipt["rank"] is None else [f"rank{receipt['rank']}"]
    return next((file for name in names if (file := folder / name / "dump.json").is_file()), None)


def _calls_in(file: Path) -> int | None:
    try:
        return len(json.loads(file.read_text(encoding="utf-8"))["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _absent_tensor(file: Path) -> str | None:
    folder = file.parent / "dump_tensor_data"
    if not folder.is_dir():
        return None
    there = {path.name for path in folder.iterdir() if path.stat().st_size}
    data = json.loads(file.read_text(encoding="utf-8"))["data"]
    return next((name for name in _data_names(data) if name not in there), None)


def _data_names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        name = value.get("data_name")
        if isinstance(name, str):
            yield name
        for inner in value.values():
            yield from _data_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _data_names(inner)


def _absent_ranks(takers: list[Receipt], settings: Mapping[str, Any]) -> Iterator[Step]:
    """Yield a missing step for each rank that the world has, or was asked for, and that left no receipt."""
    there = {r["rank"] for r in takers}
    world = range(max((r["world_size"] or 1 for r in takers if r["rank"] is not None), default=0))
    expected = settings["ranks"] or world
    if None in there:
        return
    for rank in expected:
        if rank not in there:
            for step, iteration in _wanted({}, settings):
                yield Step(step, rank, 0, "missing", "this rank left no receipt", iteration)


def _reason(
    steps: tuple[Step, ...],
    receipts: list[Receipt],
    takers: list[Receipt],
    settings: Mapping[str, Any],
    folder: Path,
) -> tuple[str | None, str | None]:
    """Say why the evidence is not whole, and what to do; (None, None) where it is."""
    if steps and all(step.state == "complete" for step in steps) and not _conflict(receipts):
        return None, None
    if not receipts:
        return NOT_STARTED, f"pass on PRECDIAG_SESSION={folder.absolute()} and PYTHONPATH={INJECT}"
    problem = next((r["problem"] for r in receipts if r.get("problem")), None)
    if problem is not None:
        return problem, "install it for that interpreter; precdiag doctor checks this one"
    failed = next((r for r in receipts if r["state"] in ("failed", "conflict")), None)
    if failed is not None:
        return failed.get("error") or failed["notes"][-1], failed.get("error_at")
    if any(r["state"] == "filtered" for r in receipts) and not takers:
        return _filtered(receipts, settings)
    if not takers:
        return _never_attached(receipts)
    return _incomplete(steps, takers)


def _conflict(receipts: list[Receipt]) -> bool:
    return any(r["state"] == "conflict" for r in receipts)


def _filtered(receipts: list[Receipt], settings: Mapping[str, Any]) -> tuple[str, str]:
    ranks = sorted(r["rank"] for r in receipts if r["state"] == "filtered" and r["rank"] is not None)
    asked = ",".join(map(str, settings["ranks"]))
    if not ranks:
        return f"rank filter: a single process has no rank, so --rank {asked} leaves it out", "leave --rank out"
    return f"rank filter: --rank {asked} leaves out every rank there was ({ranks[0]}-{ranks[-1]})", "check --rank"


def _never_attached(receipts: list[Receipt]) -> tuple[str, str | None]:
    if not any(r["state"] == "torch" for r in receipts):
        return "started but never attached: torch was never imported", "is this the command that trains?"
    return (
        "started but never attached: torch was imported, but no module of an optimizer (or any) was called",
        "is this the command that trains? --step-at call makes every outermost module call a step",
    )


def _incomplete(steps: tuple[Step, ...], takers: list[Receipt]) -> tuple[str, str | None]:
    first = next(step for step in steps if step.state != "complete")
    where = f"step {first.step}" + ("" if first.rank is None else f" of rank {first.rank}")
    if first.state == "unfinished" and not any(r.get("finished") for r in takers if r["rank"] == first.rank):
        return f"killed inside a step: {where} is unfinished ({first.why})", "run it again"
    if first.state == "missing" and not any(r["steps"] for r in takers):
        seen = max((r.get("iterations", 0) for r in takers), default=0)
        evaluations = sum(r["evaluations"] for r in takers)
        also = f" and {evaluations} evaluation passes" if evaluations else ""
        return (
            f"attached but no step reached: {where} was asked for, the run had {seen} iterations{also}",
            "check --step",
        )
    return f"{where} is {first.state}: {first.why}", None


def _ordered(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda s: (s.step is None, s.step or 0, s.rank is not None, s.rank or 0)))
