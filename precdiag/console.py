"""What every command does alike: settle its settings, and talk on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from precdiag.errors import UsageError

if TYPE_CHECKING:
    from precdiag.settings import Section

S = TypeVar("S", bound="Section")


def settled(section: type[S], flags: Mapping[str, object | None], config: Path | None, *, show_config: bool) -> S:
    """Resolve a command's settings; print them, each with where it came from, and stop where that was asked for.

    `flags` maps keys to values, None being "not given". Raises UsageError for what is not a valid setting.
    """
    from precdiag.config import load
    from precdiag.report import config_text, show

    loaded = load(section, flags, config_file=config, environ=os.environ, cwd=Path.cwd())
    if show_config:
        show(config_text(loaded.rows))
        raise typer.Exit
    return loaded.settings


def refuse(options: Mapping[str, object], why: str) -> None:
    """Raise UsageError for the first option that was given, where it would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} {why}")


def say(message: str) -> None:
    """Write one line of talk to stderr."""
    print(message, file=sys.stderr)  # noqa: T201


def complain(message: str, hint: str | None = None) -> None:
    """Write one line, and one for the hint, to stderr; a closed stderr is no reason to fail."""
    try:
        sys.stderr.write(f"precdiag: {message}\n" + (f"  {hint}\n" if hint else ""))
        sys.stderr.flush()
    except OSError:
        pass
