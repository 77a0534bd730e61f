"""Run commands with the hook in their environment: log and echo, pass signals on, leave nothing running."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from uuid import uuid4

from precdiag.errors import PrecdiagError

# env(1): the command was found but cannot be run; it was not found.
CANNOT_RUN = 126
NOT_FOUND = 127

# torchrun gives its workers 30 s between SIGTERM and SIGKILL.
GRACE_SECONDS = 30.0
SWEEP_SECONDS = 5.0
POLL_SECONDS = 0.05
ENOUGH = "when every step was there"

# In every process of one launch, and in no other's.
MARKER = "PRECDIAG_LAUNCH"

# What runs a command that uses shell syntax; its text is the third word.
SHELL = ("/bin/sh", "-c")

_SHELL_SYNTAX = re.compile(r"[|&;<>()$`\n*?~]|^\s*\w+=")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Command:
    """What to run: words, where, with which environment, and where its output goes.

    `marker` is put into its environment: whatever the command leaves running is known by it.
    """

    words: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str]
    log: Path
    marker: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True)
class Ended:
    """How a command ended: `status` as a shell shows it (128+N for a signal), `why` where we ended it."""

    status: int
    why: str | None = None


def split_command(text: str) -> tuple[str, ...]:
    """Split a command line into words; one that uses shell syntax (a pipe, a variable) goes to /bin/sh whole.

    Raises PrecdiagError as `split_words`.
    """
    return (*SHELL, text) if _SHELL_SYNTAX.search(text) else split_words(text)


def split_words(text: str) -> tuple[str, ...]:
    """Split words as a shell does. Raises PrecdiagError for a quotation that does not end."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise PrecdiagError(f"{text}: {str(error).lower()}", hint="each quote needs its partner") from error


def check_command(command: Command) -> None:
    """Raise PrecdiagError with env's status 127 or 126 where the command cannot be started."""
    name = command.words[0]
    path = command.environ.get("PATH", os.defpath)
    file = Path(name) if os.sep in name else None
    if not command.cwd.is_dir():
        raise PrecdiagError(f"{command.cwd}: no such folder", hint="check cwd in precdiag.yaml", exit_code=CANNOT_RUN)
    found = shutil.which(name, path=path) if file is None else shutil.which(str(command.cwd / file))
    if found is not None:
        return
    if file is not None and (command.cwd / file).exists():
        raise PrecdiagError(f"{name} is not executable", hint=f"chmod +x {name}", exit_code=CANNOT_RUN)
    raise PrecdiagError(f"{name}: command not found", hint="check the spelling and PATH", exit_code=NOT_FOUND)


def run_all(
    commands: Sequence[Command],
    *,
    echo: bool,
    timeout: float | None,
    progress: Callable[[], None],
    enough: Callable[[Command], bool],
) -> list[Ended]:
    """Run the commands at once and wait for all of them.

    SIGINT, SIGTERM and SIGHUP go to every command's process group, SIGKILL follows after GRACE_SECONDS. Whatever a
    command leaves behind is ended too. `progress` is called between polls. A command of which `enough` is there is
    ended like that too; its status is then 0.
    """
    with _Signals() as signals:
        runs: list[_Run] = []
        try:
            for command in commands:
                runs.append(_Run(command, echo))
            _wait(runs, signals, timeout, progress, enough)
        finally:
            for run in runs:
                run.kill()
            for command in commands:
                _sweep(command.marker)
            for run in runs:
                run.pump()
                run.output.close()
        return [run.ended(signals.last) for run in runs]


def _wait(
    runs: list[_Run],
    signals: _Signals,
    timeout: float | None,
    progress: Callable[[], None],
    enough: Callable[[Command], bool],
) -> None:
    deadline = time.monotonic() + timeout if timeout is not None else None
    while any(run.poll() is None for run in runs):
        progress()
        if signals.taken:
            _send(runs, signals.take(), f"by signal {signals.last}")
        elif deadline is not None and time.monotonic() > deadline:
            deadline = None
            _send(runs, signal.SIGTERM, f"after --timeout {timeout:g} s")
        _send([run for run in runs if run.why is None and enough(run.command)], signal.SIGTERM, ENOUGH)
        for run in runs:
            run.pump()
            run.kill_if_overdue()
        time.sleep(POLL_SECONDS)


class _Run:
    """One running command. Its output goes straight into its log, which is read again for the echo."""

    def __init__(self, command: Command, echo: bool) -> None:
        self.command = command
        self.why: str | None = None
        self.kill_at: float | None = None
        self.echo = echo
        with command.log.open("wb") as log:
            try:
                self.process = subprocess.Popen(
                    command.words,
                    cwd=command.cwd,
                    env={**command.environ, MARKER: command.marker},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise PrecdiagError(
                    f"{command.words[0]}: {error.strerror}",
                    hint="a script needs #! and an interpreter in its first line",
                    exit_code=CANNOT_RUN,
                ) from error
        self.output = command.log.open("rb")

    def poll(self) -> int | None:
        return self.process.poll()

    def pump(self) -> None:
        """Echo what the command has written since."""
        if self.echo and (new := self.output.read()):
            sys.stderr.write(new.decode("utf-8", "replace"))
            sys.stderr.flush()

    def send(self, number: int, why: str) -> None:
        self.why = self.why or why
        self.kill_at = self.kill_at or time.monotonic() + GRACE_SECONDS
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill_if_overdue(self) -> None:
        if self.kill_at is not None and time.monotonic() > self.kill_at:
            self.kill()

    def kill(self) -> None:
        """End the command's process group, if it is still there."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def ended(self, last_signal: int | None) -> Ended:
        code = self.process.returncode
        status = 0 if self.why == ENOUGH else 128 - code if code < 0 else code
        if self.why is not None and status == 0 and last_signal is not None:
            status = 128 + last_signal  # a launcher that swallowed the signal was interrupted all the same
        return Ended(status, None if self.why is None else f"ended {self.why}")


class _Signals:
    """Take the signals that end us, to pass them on; a handler of ours, for SIG_IGN would be inherited."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.last: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _FORWARDED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def take(self) -> int:
        self.last = self.taken.pop(0)
        return self.last

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.taken.append(number)


def _send(runs: list[_Run], number: int, why: str) -> None:
    for run in runs:
        if run.poll() is None:
            run.send(number, why)


def _sweep(marker: str) -> None:
    """End the processes that still carry `marker`: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _carrying(marker):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        end = time.monotonic() + SWEEP_SECONDS
        while any(_carrying(marker)):
            if time.monotonic() > end:
                break
            time.sleep(POLL_SECONDS)


def _carrying(marker: str) -> Iterator[int]:
    wanted = f"{MARKER}={marker}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                yield int(entry.name)
