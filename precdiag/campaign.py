"""The stages of a search: each is one collection of its own, run once, proven, and kept to be gone on from."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from precdiag.advice import collect_command, side_command
from precdiag.collect import collect
from precdiag.collection import LOG, Collection, SideCommand
from precdiag.collection import Side as SideName
from precdiag.errors import PrecdiagError, UnreadableError, UsageError
from precdiag.launch import SHELL
from precdiag.proof import prove
from precdiag.session import SETTINGS, Request, read_settings, request_from, write_json
from precdiag.sides import Side, collected

STATE = "localize.json"
SCHEMA = "precdiag.search/1"

# A process that is ended early has printed what it has printed: its losses are held against the log before.
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
# As shells report a program that a signal ended: 128 + its number.
SIGNALLED = 128

_COMPARED = ("steps", "iterations", "level", "task")
"""What of a request stands in a side's session.json and must be what the stage asks for."""


class StageError(PrecdiagError):
    """A stage could not be finished: why, and what to type to go on."""

    def __init__(self, why: str, commands: tuple[str, ...]) -> None:
        super().__init__(why, hint="\n  ".join(commands))
        self.commands = commands


@dataclass(frozen=True)
class Stage:
    """One collection: its name (also its folder's), what it asks for, why, and of which sides (None: every one).

    `words` are added to every side's command. `whole`: let it run to its end, else only until every step is there.
    """

    name: str
    request: Request
    why: str
    sides: tuple[SideName, ...] | None = None
    words: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Plan:
    """What a search starts from, kept in its folder: what was given, what each side runs, what every stage shares."""

    given: Mapping[str, str]
    commands: Mapping[SideName, SideCommand]
    wanted: tuple[SideName, ...]
    base: Request
    cross_device: bool | None


@dataclass
class Stages:
    """Runs stages in `folder`, within `max_bytes` for all of them and until `deadline` (time.monotonic).

    A finished stage is not run again. Raises StageError where a limit is reached, a side cannot be launched here, or
    a side left no whole evidence.
    """

    folder: Path
    plan: Plan
    max_bytes: int | None = None
    deadline: float | None = None
    parallel: bool = False
    done: list[Stage] = field(default_factory=list)

    def collected(self, stage: Stage) -> dict[SideName, Side]:
        """Return the sides that a stage left, running those that are not there yet."""
        numbered = replace(stage, name=f"{len(self.done) + 1:02d}-{stage.name}")
        place = self.folder / numbered.name
        wanted = stage.sides or self.plan.wanted
        missing = [side for side in wanted if not _complete(place / side, stage.request)]
        found = self._run(numbered, place, missing) if missing else collected(place)
        self.done.append(numbered)
        self._write("done")
        return found

    def _run(self, stage: Stage, place: Path, missing: list[SideName]) -> dict[SideName, Side]:
        variables = {} if stage.whole else UNBUFFERED
        commands = {side: _changed(command, stage.words, variables) for side, command in self.plan.commands.items()}
        here = {side: commands[side] for side in missing if side in commands}
        resume = f"precdiag localize --continue {self.folder}"
        request = replace(stage.request, max_bytes=self._bytes_left(resume))
        if here:
            _say(f"{stage.name}: {stage.why}")
            command = collect_command(request, str(place), here, configured=not stage.words)
            _say(f"  {command}  ({', '.join(here)})")
        self._write("begun", stage)
        ended: dict[str, int] = {}
        for group in [here] if self.parallel and here else [{side: command} for side, command in here.items()]:
            left = self._collect(place, request, group, self._time(resume), whole=stage.whole)
            pass_signal_on(left, resume)
            ended |= {side.side: side.ended.status for side in left.sides}
        elsewhere = [side for side in missing if side not in here]
        if elsewhere:
            lines = [side_command(request, str(place), side, None) for side in elsewhere]
            where = " and ".join(f"{place / side}" for side in elsewhere)
            why = f"{stage.name}: run it where {' and '.join(elsewhere)} can run, and put what it leaves at {where}"
            raise StageError(why, (*lines, resume))
        found = collected(place)
        for side in here:
            if found[side].unfinished is not None:
                status = f"ended with status {ended[side]} and " if ended.get(side) else ""
                why = f"{stage.name}: the {side} {status}left no whole evidence: {found[side].unfinished}"
                raise StageError(f"{why}; what it printed is in {place / side / LOG}", (resume,))
        return found

    def _collect(
        self,
        place: Path,
        request: Request,
        group: Mapping[SideName, SideCommand],
        timeout: float | None,
        *,
        whole: bool,
    ) -> Collection:
        try:
            return collect(
                place,
                request,
                group,
                force=True,
                quiet=True,
                parallel=self.parallel,
                timeout=timeout,
                no_longer=not whole,
            )
        except PrecdiagError as error:  # collect passes env's statuses on; here it is "could not look"
            raise PrecdiagError(str(error), hint=error.hint) from error

    def _bytes_left(self, resume: str) -> int | None:
        if self.max_bytes is None:
            return None
        used = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        left = (self.max_bytes - used) // max(len(self.plan.wanted), 1)
        if left <= 0:
            raise StageError(
                f"--max-bytes {self.max_bytes:,} is used up", (f"{resume} --max-bytes {2 * self.max_bytes}",)
            )
        return left

    def _time(self, resume: str) -> float | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise StageError("--timeout is over", (resume,))
        return left

    def _write(self, state: str, begun: Stage | None = None) -> None:
        listed = [*self.done, *([begun] if begun else [])]
        entries = [
            {"name": each.name, "why": each.why, "state": state if each is listed[-1] else "done"}
            | {"request": asdict(each.request)}
            for each in listed
        ]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / STATE, {"schema": SCHEMA, "plan": _plan_document(self.plan), "stages": entries})
        except OSError as error:
            raise PrecdiagError(f"cannot write to {self.folder}: {error.strerror}") from error


def read_plan(folder: Path) -> Plan:
    """Read what a search in `folder` started from. Raises UnreadableError where there is none."""
    try:
        plan = json.loads((folder / STATE).read_text(encoding="utf-8"))["plan"]
        commands = {
            side: SideCommand(tuple(entry["words"]), Path(entry["cwd"]), entry["env"])
            for side, entry in plan["commands"].items()
        }
        return Plan(plan["given"], commands, tuple(plan["wanted"]), request_from(plan["base"]), plan["cross_device"])
    except FileNotFoundError as error:
        raise UnreadableError(f"{folder}: no search to go on with ({STATE})", hint="precdiag localize --run") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"{folder / STATE}: not what precdiag localize --run wrote ({error})") from error


def check_same(folder: Path, plan: Plan) -> None:
    """Raise UsageError where `folder` holds a search that started from something else, or no search but its stages."""
    if not (folder / STATE).exists() and (folder.is_file() or any(folder.glob("[0-9][0-9]-*"))):
        raise UsageError(f"{folder} is there, and no search ({STATE})", hint="choose another --out")
    if (folder / STATE).exists() and read_plan(folder) != plan:
        raise UsageError(
            f"{folder} holds a search of other commands, logs or settings",
            hint=f"choose another --out, or go on with it: precdiag localize --continue {folder}",
        )


def _plan_document(plan: Plan) -> dict[str, Any]:
    commands = {
        side: {"words": list(command.words), "cwd": str(command.cwd), "env": dict(command.env)}
        for side, command in plan.commands.items()
    }
    return {
        "given": dict(plan.given),
        "commands": commands,
        "wanted": list(plan.wanted),
        "base": asdict(plan.base),
        "cross_device": plan.cross_device,
    }


def _changed(command: SideCommand, words: tuple[str, ...], variables: Mapping[str, str]) -> SideCommand:
    """Add words and variables to a command; one that a shell runs gets the words at the end of its text."""
    env = {**variables, **command.env}
    if command.words[:2] == SHELL and words:
        return replace(command, words=(*SHELL, f"{command.words[2]} {shlex.join(words)}"), env=env)
    return replace(command, words=(*command.words, *words), env=env)


def pass_signal_on(left: Collection, resume: str) -> None:
    """End the search where a signal ended a side: that is no finding."""
    for side in left.sides:
        if side.ended.why and side.ended.status > SIGNALLED and "signal" in side.ended.why:
            raise PrecdiagError("interrupted", hint=resume, exit_code=side.ended.status)


def _complete(folder: Path, request: Request) -> bool:
    """Whether a side is there and whole. Raises UsageError where it was collected with another request."""
    if not (folder / SETTINGS).is_file():
        return False
    try:
        settings = read_settings(folder)
    except ValueError:
        return False
    asked = {key: _listed(getattr(request, key)) for key in _COMPARED}
    held = {key: settings.get(key) for key in _COMPARED}
    if asked != held:
        unlike = next(key for key in _COMPARED if asked[key] != held[key])
        raise UsageError(
            f"{folder} was collected with {unlike} {held[unlike]}, and the stage asks for {asked[unlike]}",
            hint="collect it again with the command that was printed, or choose another --out",
        )
    return prove(folder).complete


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _say(text: str) -> None:
    sys.stderr.write(f"precdiag: {text}\n")
    sys.stderr.flush()
