"""The next command to type: what to collect, at which steps and level, ready to be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from precdiag.collection import SIDES, Side, SideCommand
from precdiag.launch import SHELL
from precdiag.session import Request
from precdiag.settings import CollectSettings

_MEGATRON = ("megatron", "mindspeed-llm-fsdp2", "mindspeed-mm")
_TRAINER = ("hf-stdout", "hf-trainer-state", "llamafactory-jsonl", "ms-swift")
COUNTED_BY_FRAMEWORK = frozenset([*_MEGATRON, *_TRAINER, "deepspeed"])
"""Formats whose framework counts iterations where the hook sees it: `--step iter:N` needs no mapping there."""

_DEFAULT = CollectSettings()


def collect_command(
    request: Request, out: str, commands: Mapping[Side, SideCommand | None], *, configured: bool = False
) -> str:
    """Write the command that collects `request` into `out`, both sides; what is default is left out.

    A side whose command is not known gets a placeholder. `configured`: precdiag.yaml says what runs.
    """
    words = ["precdiag", "collect", "--out", out, *_request_words(request)]
    before: list[str] = []
    if not configured:
        for side in SIDES:
            command = commands.get(side)
            words += [f"--{side}", f"the {side} command" if command is None else command_text(command)]
            before += [] if command is None else _place(side, command)
    return " ".join([*before, shlex.join(words)])


def side_command(request: Request, out: str, side: Side, command: SideCommand | None) -> str:
    """Write the command that collects one side, to be typed where that side can run."""
    words = ["precdiag", "collect", "--out", out, "--side", side, *_request_words(request), "--"]
    before = [] if command is None else _place(side, command)
    return " ".join([*before, shlex.join(words), "CMD ARG…" if command is None else shlex.join(command.words)])


def command_text(command: SideCommand) -> str:
    """Write a command as the user did: one that a shell runs is its text."""
    if command.words[:2] == SHELL:
        return command.words[2]
    return shlex.join(command.words)


def integers_text(numbers: Iterable[int]) -> str:
    """Write integers as `0,5-7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _request_words(request: Request) -> list[str]:
    window = f"iter:{integers_text(request.iterations)}" if request.iterations else integers_text(request.steps)
    words = ["--step", window]
    if request.ranks:
        words += ["--rank", integers_text(request.ranks)]
    for name in ("level", "task", "summary", "step_at", "model", "seed", "max_bytes"):
        value = getattr(request, name)
        if value != getattr(_DEFAULT, name) and not (name == "summary" and request.task == "tensor"):
            words += ["--" + name.replace("_", "-"), str(value)]
    for name in ("scope", "list"):
        if getattr(request, name):
            words += ["--" + name, ",".join(getattr(request, name))]
    switches = [("--deterministic", request.deterministic), ("--update-stats", request.update_stats)]
    return [*words, *(option for option, on in switches if on)]


def _place(side: Side, command: SideCommand) -> list[str]:
    """Say where a command runs, and with which variables, where that is not here."""
    variables = dict(command.env)
    if command.cwd not in (Path(), Path.cwd()):
        variables[f"PRECDIAG_COLLECT_{side.upper()}_CWD"] = str(command.cwd)
    return [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
