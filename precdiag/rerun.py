"""Run a side once more to test the measurement itself: is the run repeatable, does collecting change it?"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from precdiag.collection import LOG, CheckResult, SideResult
from precdiag.launch import Ended
from precdiag.proof import prove
from precdiag.receipts import data_names
from precdiag.session import Request, write_session

# Run the side's command into a folder that holds a session; `hooked` puts the hook in.
Launch = Callable[[Path, Request, bool], Ended]

# A number printed after the word loss: `loss: 0.1234`, `'loss': 2.5e-01`, `lm loss: 1.0E+01 |`.
_LOSS = re.compile(r"(?i)loss\w*['\"]?\s*[:=]?\s*([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))")


def check_determinism(launch: Launch, request: Request, first: SideResult, identity: str) -> CheckResult:
    """Run `first` a second time and compare its two dumps: found is the first call in which they differ bitwise."""
    again = first.folder.with_name(f"{first.side}-repeat")
    shutil.rmtree(again, ignore_errors=True)
    write_session(again, request, side=again.name, identity=identity)
    ended = launch(again, request, True)
    proof = prove(again)
    if ended.status or not proof.complete:
        why = proof.reason or f"it ended with status {ended.status}"
        return CheckResult("determinism", None, f"not known, the second run of the {first.side} failed: {why}")
    found = first_difference(first.proof.dump, proof.dump)
    if found is None:
        return CheckResult(
            "determinism", False, f"two runs of the {first.side} are equal in everything that was dumped"
        )
    return CheckResult(
        "determinism",
        True,
        f"the {first.side} is not repeatable, two runs of it first differ at {found}; "
        "what compare finds from there on is noise until that is gone",
    )


def check_observer(launch: Launch, request: Request, side: SideResult, identity: str) -> CheckResult:
    """Run `side` once without msprobe and compare the losses that the two runs print, as printed.

    With --seed or --deterministic the hook goes in all the same, to set these and nothing else.
    """
    plain = side.folder.with_name(f"{side.side}-plain")
    shutil.rmtree(plain, ignore_errors=True)
    idle = replace(request, steps=(), iterations=(), step_at="manual")
    write_session(plain, idle, side=plain.name, identity=identity)
    ended = launch(plain, idle, request.seed is not None or request.deterministic)
    if ended.status:
        return CheckResult("observer", None, f"not known, the run without the hook ended with status {ended.status}")
    with_hook, without = printed_losses(side.folder / LOG), printed_losses(plain / LOG)
    if not without:
        return CheckResult("observer", None, "not known, the command prints no losses")
    if with_hook == without:
        return CheckResult("observer", False, f"the {len(without)} losses printed are the same with and without it")
    place = next((i for i, pair in enumerate(zip(with_hook, without, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return CheckResult("observer", True, f"{len(with_hook)} losses with the hook, {len(without)} without it")
    return CheckResult(
        "observer",
        True,
        f"collecting changes the run, loss {place} is {with_hook[place]} with the hook and {without[place]} without it",
    )


def first_difference(baseline: Path, candidate: Path) -> str | None:
    """Name the first call in which two dumps of the same side differ bitwise (`step 0: Torch.rand.0.forward`), or None.

    Equal means the same calls in the same order with the same text of every number, and the same bytes of every tensor
    file, whose names are equal for equal calls.
    """
    ours, theirs = _dump_files(baseline), _dump_files(candidate)
    for place in [*ours, *(place for place in theirs if place not in ours)]:
        where = f"step {place[0]}" + (f" {place[1]}" if place[1] else "")
        if place not in ours or place not in theirs:
            return f"{where}: in one of the two runs only"
        call = _first_call(ours[place], theirs[place])
        if call is not None:
            return f"{where}: {call}"
    return None


def printed_losses(log: Path) -> list[str]:
    """The losses that a log prints, as text, in order."""
    return _LOSS.findall(log.read_text(encoding="utf-8", errors="replace"))


def _dump_files(dump: Path) -> dict[tuple[int, str], Path]:
    """Map (step, rank folder) to dump.json in order; a single process's folder, named by its pid, has no name."""
    found = {}
    for file in dump.glob("step*/*/dump.json"):
        name = file.parent.name
        found[int(file.parent.parent.name.removeprefix("step")), "" if name.startswith("proc") else name] = file
    return dict(sorted(found.items()))


def _first_call(ours: Path, theirs: Path) -> str | None:
    one, two = (json.loads(file.read_text(encoding="utf-8"))["data"] for file in (ours, theirs))
    names = list(one)
    for place, name in enumerate(two):
        if place >= len(names) or names[place] != name:
            return f"{name} (the calls are not the same)"
        # As text, for NaN is not equal to itself.
        if json.dumps(one[name]) != json.dumps(two[name]) or not _same_tensors(ours, theirs, one[name]):
            return name
    return names[len(two)] if len(names) > len(two) else None


def _same_tensors(ours: Path, theirs: Path, call: object) -> bool:
    folders = ours.with_name("dump_tensor_data"), theirs.with_name("dump_tensor_data")
    return all(_same_bytes(*(folder / name for folder in folders)) for name in data_names(call))


def _same_bytes(one: Path, two: Path) -> bool:
    return one.is_file() and two.is_file() and one.read_bytes() == two.read_bytes()
