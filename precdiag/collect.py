"""Run one process a side with the hook injected, then prove what each left, step by step and rank by rank."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from precdiag.collection import (
    LOG,
    OWN_FAILURE,
    SIDES,
    CheckResult,
    Collection,
    Side,
    SideCommand,
    SideResult,
    conclude,
    settle,
    write_collection,
)
from precdiag.environment import DETERMINISTIC_VARIABLES
from precdiag.errors import PrecdiagError, UsageError
from precdiag.launch import Command, Ended, check_command, run_all, split_command
from precdiag.proof import every_step_is_there, prove
from precdiag.receipts import progress_lines
from precdiag.rerun import check_determinism, check_observer
from precdiag.session import (
    SETTINGS,
    Request,
    check_path,
    clear_session,
    hook_environment,
    read_settings,
    request_in,
    write_json,
    write_session,
)
from precdiag.settings import CollectSettings

# Room that a collection is refused below: one step of statistics of a large model.
LEAST_FREE_BYTES = 64 * 2**20

# Where a scheduler gives one job's processes the same id, in this order.
RUN_IDS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")

# How often receipts are looked at for the live report.
PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class Node:
    """One of several launchers that write into one collection; `run` is the id that they share."""

    number: int
    run: str


def collect(
    folder: Path,
    request: Request,
    commands: Mapping[Side, SideCommand],
    *,
    force: bool = False,
    parallel: bool = False,
    quiet: bool = False,
    timeout: float | None = None,
    repeat: bool = False,
    observe: bool = False,
    node: Node | None = None,
    no_longer: bool = False,
) -> Collection:
    """Collect the sides in `commands` into `folder`, prove them, and write collection.json.

    `repeat` runs the first side twice, `observe` once without the hook (rerun.py). With `node`, this is one of several
    launchers that write into `folder`: only what this one started is judged, and verify() judges the whole.
    `no_longer`: a side is ended once every step asked for is there and the next one has begun.

    Raises UsageError for a path that msprobe refuses or a folder in use, PrecdiagError with status 126 or 127 for a
    command that cannot run and with 125 for a folder or disk that cannot be written.
    """
    folder = folder.absolute()
    identity = node.run if node else uuid4().hex
    prepared = _prepare(folder, request, commands, identity, force=force, node=node)
    report = _Progress([folder / side for side in commands])
    enough = _Enough() if no_longer else _never
    runner = _Runner(echo=not quiet, timeout=timeout, progress=report, enough=enough)
    ended = runner.run(prepared, parallel=parallel)
    report(last=True)
    results = tuple(
        SideResult(side, folder / side, commands[side], end, prove(folder / side, started.marker if node else None))
        for (side, started), end in zip(zip(commands, prepared, strict=True), ended, strict=False)
    )
    if node is not None:
        return _of_node(folder, request, results, node)
    for side in results:
        settle(side)
    checks: list[CheckResult] = []
    first = results[0]
    if first.verified and not any(end.why for end in ended):
        launch = runner.again(first.command)
        checks += [check_determinism(launch, request, first, identity)] if repeat else []
        checks += [check_observer(launch, request, first, identity)] if observe else []
    collection = conclude(folder, request, results, tuple(checks))
    write_collection(collection)
    return collection


def node_of(number: int | None, run: str | None, environ: Mapping[str, str]) -> Node | None:
    """Return which node this is: as given, else $GROUP_RANK with the scheduler's job id; None where there is one node.

    Raises UsageError for a node without an id to share.
    """
    text = environ.get("GROUP_RANK", "")
    number = int(text) if number is None and text.isdigit() else number
    if number is None:
        return None
    run = run or next((environ[name] for name in RUN_IDS if environ.get(name)), None)
    if run is None:
        raise UsageError("nodes of one run need an id that they share", hint="give each --run-id ID, the same for all")
    return Node(number, run)


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


def _of_node(folder: Path, request: Request, results: tuple[SideResult, ...], node: Node) -> Collection:
    for side in results:
        result = {"node": node.number, "host": socket.gethostname(), "verified": side.verified}
        write_json(side.folder / f"node-{node.number}.json", {**result, **asdict(side.ended)})
    note = f"this is node {node.number} alone; once every node has ended: precdiag collect --verify {folder}"
    return Collection(folder, request, results, (), (), (), (note,))


class _Progress:
    """Say each finished step of each rank once, on stderr."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._said: set[Any] = set()
        self._next = 0.0

    def __call__(self, *, last: bool = False) -> None:
        if time.monotonic() < self._next and not last:
            return
        self._next = time.monotonic() + PROGRESS_SECONDS
        for folder in self._folders:
            for key, line in progress_lines(folder):
                if (folder, key) not in self._said:
                    self._said.add((folder, key))
                    sys.stderr.write(f"precdiag: {line}\n")


class _Enough:
    """Tell whether every step that a command was to leave is there; receipts are read twice a second."""

    def __init__(self) -> None:
        self._next: dict[Path, float] = {}

    def __call__(self, command: Command) -> bool:
        folder = command.log.parent
        if time.monotonic() < self._next.get(folder, 0.0):
            return False
        self._next[folder] = time.monotonic() + PROGRESS_SECONDS
        return every_step_is_there(folder)


def _never(command: Command) -> bool:
    return False


@dataclass(frozen=True)
class _Runner:
    echo: bool
    timeout: float | None
    progress: Callable[[], None]
    enough: Callable[[Command], bool]

    def run(self, commands: Sequence[Command], *, parallel: bool) -> list[Ended]:
        """Run the commands at once or one after the other; one ended by us, or by a signal, is the last."""
        groups = [list(commands)] if parallel else [[command] for command in commands]
        ended: list[Ended] = []
        for group in groups:
            ended += run_all(group, echo=self.echo, timeout=self.timeout, progress=self.progress, enough=self.enough)
            if any(end.why and end.status for end in ended):
                break
        return ended

    def again(self, command: SideCommand) -> Callable[[Path, Request, bool], Ended]:
        """Return a function that runs `command` once more, into another folder, with or without the hook."""

        def launch(folder: Path, request: Request, hooked: bool) -> Ended:
            return self.run([_command(folder, request, command, hooked=hooked)], parallel=False)[0]

        return launch


def _prepare(
    folder: Path,
    request: Request,
    commands: Mapping[Side, SideCommand],
    identity: str,
    *,
    force: bool,
    node: Node | None,
) -> list[Command]:
    check_path(folder)
    joined = {side for side in commands if (folder / side / SETTINGS).exists()}
    for side in joined:
        if node is not None:
            _join(folder / side, request, node)
        else:
            clear_session(folder / side, force=force)
    log = LOG if node is None else f"log-node{node.number}.txt"
    prepared = [_command(folder / side, request, command, log=log) for side, command in commands.items()]
    for command in prepared:
        check_command(command)
    try:
        for side in commands:
            if node is None or side not in joined:
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


def _join(folder: Path, request: Request, node: Node) -> None:
    """Let `node` write into a session that another node has begun. Raises UsageError where it is not the same one."""
    begun = read_settings(folder)["session"]
    if begun != node.run:
        raise UsageError(f"{folder} holds the collection of another run, {begun}", hint="choose another --out")
    if request_in(folder) != request:
        raise UsageError(f"{folder} was begun with other options", hint="give every node the same options")
    if (folder / f"node-{node.number}.json").exists():
        raise UsageError(f"{folder} holds what node {node.number} left", hint="choose another --out, or another --node")


def _command(folder: Path, request: Request, command: SideCommand, *, hooked: bool = True, log: str = LOG) -> Command:
    environ = {**os.environ, **(DETERMINISTIC_VARIABLES if request.deterministic else {}), **command.env}
    environ.pop("PRECDIAG_OUT", None)  # a kit's: here the folder is ours
    environ |= hook_environment(folder, environ) if hooked else {}
    return Command(command.words, command.cwd.absolute(), environ, folder / log)
