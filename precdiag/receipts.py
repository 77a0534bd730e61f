"""Read what each process of a collection said, and hold each step that it reports to the files it left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from precdiag.session import RECEIPTS

State = Literal["complete", "unfinished", "empty", "missing"]
Receipt = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One step of one rank: `calls` as counted, and why it is not complete."""

    step: int | None
    rank: int | None
    calls: int
    state: State
    why: str | None = None
    iteration: int | None = None


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
            calls = _read_calls(part)
            state: State = "unfinished" if calls is None else "complete" if calls else "empty"
            why = "dump.json cannot be read" if calls is None else None
            judged.append(Step(step, int(name) if name.isdigit() else None, len(calls or ()), state, why))
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


def steps_of(receipt: Receipt, settings: Mapping[str, Any], dump: Path) -> Iterator[Step]:
    """Judge every step asked for of the process that wrote `receipt`: complete where it said so and `dump` agrees."""
    said = {entry["step"]: entry for entry in receipt["steps"]}
    for step, iteration in wanted(receipt, settings):
        entry = said.get(step)
        if entry is None:
            yield Step(step, receipt["rank"], 0, "missing", "never reached", iteration)
        else:
            yield _judge_entry(entry, receipt, dump)


def wanted(receipt: Receipt, settings: Mapping[str, Any]) -> list[tuple[int | None, int | None]]:
    """List (dump step, the log's iteration) of every step asked for, as far as `receipt` knows one by the other."""
    offset = receipt.get("offset")
    if settings["iterations"]:
        return [(None if offset is None else n - offset, n) for n in settings["iterations"]]
    return [(step, None) for step in settings["steps"]]


def data_names(value: object) -> Iterator[str]:
    """Yield the names of the tensor files that an entry of dump.json, or all of them, speaks of."""
    if isinstance(value, dict):
        name = value.get("data_name")
        if isinstance(name, str):
            yield name
        for inner in value.values():
            yield from data_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from data_names(inner)


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
    calls = _read_calls(file)
    if calls is None or len(calls) != said:
        return judged("unfinished", f"dump.json holds {'no' if calls is None else len(calls)} calls of {said}")
    absent = _absent_tensor(file.parent / "dump_tensor_data", calls)
    if absent is not None:
        return judged("unfinished", f"the tensor file {absent} is missing")
    return judged("complete")


def _dump_file(folder: Path, receipt: Receipt) -> Path | None:
    # 26.x: rank{R} or proc{PID}; 8.x and 1.x name a single process's folder `rank`.
    names = ["rank", f"proc{receipt['pid']}"] if receipt["rank"] is None else [f"rank{receipt['rank']}"]
    return next((file for name in names if (file := folder / name / "dump.json").is_file()), None)


def _read_calls(file: Path) -> Sized | None:
    try:
        calls = json.loads(file.read_text(encoding="utf-8"))["data"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return calls if isinstance(calls, Sized) else None


def _absent_tensor(folder: Path, calls: object) -> str | None:
    if not folder.is_dir():
        return None
    there = {path.name for path in folder.iterdir() if path.stat().st_size}
    return next((name for name in data_names(calls) if name not in there), None)
