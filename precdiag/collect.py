"""Run one process a side with the hook injected, then prove what each left, step by step and rank by rank."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from precdiag.config import CollectSettings
from precdiag.environment import (
    DETERMINISTIC_TORCH,
    DETERMINISTIC_VARIABLES,
    Difference,
    SwitchRow,
    differences,
    git_state,
    switch_table,
)
from precdiag.errors import PrecdiagError, UsageError
from precdiag.launch import Command, Ended, check_command, run_all, split_command
from precdiag.receipts import Proof, progress_lines, prove
from precdiag.session import (
    SETTINGS,
    Request,
    check_path,
    hook_environment,
    write_json,
    write_session,
)

SCHEMA = "precdiag.collect/1"
COLLECTION = "collection.json"
LOG = "log.txt"

# Our own failure, "exited 0 but collected nothing" included (env and docker use the same number).
OWN_FAILURE = 125

# Room that a collection is refused below: one step of statistics of a large model.
LEAST_FREE_BYTES = 64 * 2**20

Side = Literal["baseline", "candidate"]
SIDES: tuple[Side, Side] = ("baseline", "candidate")

# A number printed after the word loss: `loss: 0.1234`, `'loss': 2.5e-01`, `lm loss: 1.0E+01 |`.
_LOSS = re.compile(r"(?i)loss\w*['\"]?\s*[:=]?\s*([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))")


@dataclass(frozen=True)
class SideCommand:
    """What one side runs: words, where, and variables on top of ours."""

    words: tuple[str, ...]
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SideResult:
    """How one side ended and what it proves. `finding` is what a check on it found, if one was asked for."""

    side: str
    folder: Path
    command: SideCommand
    ended: Ended
    proof: Proof

    @property
    def verified(self) -> bool:
        """True where the side ran to its end and its evidence is whole."""
        return self.ended.status == 0 and self.proof.complete


@dataclass(frozen=True)
class Collection:
    """Both sides (or the one that was run), what differs between them, and what was found by a check."""

    folder: Path
    request: Request
    sides: tuple[SideResult, ...]
    differences: tuple[Difference, ...]
    switches: tuple[SwitchRow, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def status(self) -> int:
        """0 if every side is verified; the status of the first side that failed; 125 where only the evidence did."""
        failed = next((side.ended.status for side in self.sides if side.ended.status), 0)
        return failed or (0 if all(side.verified for side in self.sides) else OWN_FAILURE)


def collect(
    folder: Path,
    request: Request,
    commands: Mapping[Side, SideCommand],
    *,
    force: bool = False,
    parallel: bool = False,
    quiet: bool = False,
    timeout: float | None = None,
    check_determinism: bool = False,
    check_observer: bool = False,
) -> Collection:
    """Collect the sides in `commands` into `folder`, prove them, and write collection.json.

    Raises UsageError for a path that msprobe refuses or a folder in use, PrecdiagError with status 126 or 127 for a
    command that cannot run and with 125 for a folder or disk that cannot be written.
    """
    folder = folder.absolute()
    identity = uuid4().hex
    prepared = _prepare(folder, request, commands, identity, force=force)
    report = _Progress([folder / side for side in commands])
    runner = _Runner(echo=not quiet, timeout=timeout, progress=report)
    ended = runner.run(prepared, parallel=parallel)
    results = tuple(
        SideResult(side, folder / side, commands[side], end, prove(folder / side))
        for side, end in zip(commands, ended, strict=False)
    )
    findings = []
    if check_determinism and results and results[0].verified:
        findings.append(_repeat(runner, folder, request, results[0], identity))
    if check_observer and results and results[0].verified:
        findings.append(_without_hook(runner, folder, results[0]))
    collection = _collection(folder, request, results, tuple(findings))
    write_json(folder / COLLECTION, document(collection))
    return collection


def side_commands(settings: CollectSettings, side: Side, words: Sequence[str]) -> dict[Side, SideCommand]:
    """Return what each side is to run: `words` for `side` alone if there are any, else what the settings say.

    Raises UsageError where nothing says what to run.
    """
    commands: dict[Side, SideCommand] = {}
    for name in SIDES:
        section = getattr(settings, name)
        given = tuple(words) if words and name == side else split_command(section.command or "")
        if given and (name == side or not words):
            commands[name] = SideCommand(given, Path(section.cwd or ".").absolute(), section.env)
    if not commands:
        raise UsageError(
            "nothing to run", hint='precdiag collect --baseline "CMD" --candidate "CMD", or --side SIDE -- CMD ARG…'
        )
    return commands


def document(collection: Collection) -> dict[str, Any]:
    """Build collection.json; a side collected earlier into the same folder keeps its entry."""
    earlier = _read_collection(collection.folder).get("sides", {})
    sides = {**earlier, **{side.side: _side_json(side) for side in collection.sides}}
    return {
        "schema": SCHEMA,
        "verified": bool(sides) and all(side["verified"] for side in sides.values()),
        "request": asdict(collection.request),
        "sides": sides,
        "differences": [asdict(each) for each in collection.differences],
        "switches": [{**asdict(row), "differs": row.differs} for row in collection.switches],
        "findings": list(collection.findings),
        "notes": list(collection.notes),
    }


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


class _Progress:
    """Say each finished step of each rank once, on stderr."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._said: set[Any] = set()
        self._polls = 0

    def __call__(self) -> None:
        self._polls += 1
        if self._polls % 10 != 1:  # twice a second
            return
        for folder in self._folders:
            for key, line in progress_lines(folder):
                if (folder, key) not in self._said:
                    self._said.add((folder, key))
                    sys.stderr.write(f"precdiag: {line}\n")


@dataclass(frozen=True)
class _Runner:
    echo: bool
    timeout: float | None
    progress: Callable[[], None]

    def run(self, commands: Sequence[Command], *, parallel: bool) -> list[Ended]:
        """Run the commands at once or one after the other; one ended by us, or by a signal, is the last."""
        groups = [list(commands)] if parallel else [[command] for command in commands]
        ended: list[Ended] = []
        for group in groups:
            ended += run_all(group, echo=self.echo, timeout=self.timeout, progress=self.progress)
            if any(end.why for end in ended):
                break
        return ended


def _prepare(
    folder: Path, request: Request, commands: Mapping[Side, SideCommand], identity: str, *, force: bool
) -> list[Command]:
    check_path(folder)
    for side in commands:
        if (folder / side / SETTINGS).exists():
            if not force:
                raise UsageError(f"{folder / side} holds a collection", hint="choose another --out, or --force")
            shutil.rmtree(folder / side)
    prepared = [_command(folder / side, request, command) for side, command in commands.items()]
    for command in prepared:
        check_command(command)
    try:
        for side in commands:
            write_session(folder / side, request, side=side, identity=identity)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise PrecdiagError(
            f"cannot write to {folder}: {error.strerror}", hint="choose another --out", exit_code=OWN_FAILURE
        ) from error
    needed = max(request.max_bytes or 0, LEAST_FREE_BYTES)
    if free < needed:
        raise PrecdiagError(
            f"{folder}: {free / 2**20:.0f} MiB free, {needed / 2**20:.0f} MiB needed",
            hint="free some room, choose another --out, or lower --max-bytes",
            exit_code=OWN_FAILURE,
        )
    return prepared


def _command(folder: Path, request: Request, command: SideCommand) -> Command:
    environ = {**os.environ, **(DETERMINISTIC_VARIABLES if request.deterministic else {}), **command.env}
    environ |= hook_environment(folder, environ)
    marker = f"PRECDIAG_SESSION={folder}"
    return Command(command.words, command.cwd.absolute(), environ, folder / LOG, marker)


def _collection(
    folder: Path, request: Request, results: tuple[SideResult, ...], findings: tuple[str, ...]
) -> Collection:
    facts = {side.side: _facts(side) for side in results}
    for side, entry in _read_collection(folder).get("sides", {}).items():
        facts.setdefault(side, entry["environment"])
    pair = [facts.get(side) for side in SIDES]
    notes = []
    if request.deterministic:
        names = [*(f"{k}={v}" for k, v in DETERMINISTIC_VARIABLES.items()), *DETERMINISTIC_TORCH]
        notes.append(f"--deterministic sets {', '.join(names)}; dropout and everything else stay as they were")
    if pair[0] and pair[1]:
        found, table = tuple(differences(pair[0], pair[1])), tuple(switch_table(pair[0], pair[1]))
        start = [each.name for each in found if each.kind == "start"]
        if start:
            more = f" and {len(start) - 1} more" if len(start) > 1 else ""
            notes.append(f"the sides do not start alike: {start[0]} differs{more}; look there before any call")
    else:
        found, table = (), ()
    return Collection(folder, request, results, found, table, findings, tuple(notes))


def _facts(side: SideResult) -> dict[str, Any] | None:
    lead = side.proof.lead
    if lead is None:
        return None
    return {**lead, "git": git_state(side.command.cwd)}


def _side_json(side: SideResult) -> dict[str, Any]:
    return {
        "status": side.ended.status,
        "ended": side.ended.why,
        "verified": side.verified,
        "reason": side.proof.reason,
        "command": list(side.command.words),
        "cwd": str(side.command.cwd),
        "dump": str(side.proof.dump),
        "log": str(side.folder / LOG),
        "environment": _facts(side),
        "steps": [asdict(step) for step in side.proof.steps],
        "notes": list(side.proof.notes),
    }


def _read_collection(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / COLLECTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _repeat(runner: _Runner, folder: Path, request: Request, first: SideResult, identity: str) -> str:
    """Run the side a second time and compare its two dumps."""
    again = folder / f"{first.side}-repeat"
    shutil.rmtree(again, ignore_errors=True)
    write_session(again, request, side=again.name, identity=identity)
    ended = runner.run([_command(again, request, first.command)], parallel=False)[0]
    proof = prove(again)
    if ended.status or not proof.complete:
        return f"determinism: not known, the second run of the {first.side} failed: {proof.reason or ended.status}"
    found = first_difference(first.proof.dump, proof.dump)
    if found is None:
        return f"determinism: two runs of the {first.side} are equal in everything that was dumped"
    return (
        f"determinism: the {first.side} is not repeatable, two runs of it first differ at {found}; "
        "what compare finds from there on is noise until that is gone"
    )


def _without_hook(runner: _Runner, folder: Path, side: SideResult) -> str:
    """Run the side once without the hook and compare the losses that the two runs print."""
    plain = folder / f"{side.side}-plain"
    plain.mkdir(exist_ok=True)
    marker = f"PRECDIAG_OUT={plain}"
    environ = {**os.environ, **side.command.env, "PRECDIAG_OUT": str(plain)}
    command = Command(side.command.words, side.command.cwd.absolute(), environ, plain / LOG, marker)
    ended = runner.run([command], parallel=False)[0]
    if ended.status:
        return f"observer: not known, the run without the hook ended with status {ended.status}"
    with_hook, without = printed_losses(side.folder / LOG), printed_losses(plain / LOG)
    if not without:
        return "observer: not known, the command prints no losses"
    if with_hook == without:
        return f"observer: the {len(without)} losses printed are the same with and without the hook"
    place = next((i for i, pair in enumerate(zip(with_hook, without, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return f"observer: {len(with_hook)} losses with the hook, {len(without)} without it"
    return (
        f"observer: collecting changes the run, loss {place} is {with_hook[place]} with the hook "
        f"and {without[place]} without it"
    )


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
        if json.dumps(one[name]) != json.dumps(two[name]) or not _same_tensors(ours.parent, theirs.parent, name):
            return name
    return names[len(two)] if len(names) > len(two) else None


def _same_tensors(ours: Path, theirs: Path, name: str) -> bool:
    files = sorted((ours / "dump_tensor_data").glob(f"{name}.*"))
    return all(_same_bytes(file, theirs / "dump_tensor_data" / file.name) for file in files)


def _same_bytes(one: Path, two: Path) -> bool:
    return two.is_file() and one.read_bytes() == two.read_bytes()
