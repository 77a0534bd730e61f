"""Exit statuses, the one error class that carries them to main(), and what other errors say, in one line."""

from __future__ import annotations

EXIT_NOTHING_FOUND = 0
EXIT_FOUND = 1
EXIT_CANNOT_LOOK = 2


class PrecdiagError(Exception):
    """What the user must hear in one line, what to do next, and the status to exit with.

    `exit_code` follows diff and grep: 0 looked and found nothing, 1 found, 2 could not look. `hint` names the
    next thing to type or to check; main() prints it on a line of its own.
    """

    exit_code: int

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = EXIT_CANNOT_LOOK) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code

    @property
    def with_hint(self) -> str:
        """The message and what to do next, in one line."""
        return f"{self}: {self.hint}" if self.hint else str(self)


class UsageError(PrecdiagError):
    """The command line or the configuration asks for something that cannot be done."""


class UnreadableError(PrecdiagError):
    """A file or folder is not what it should be: says which, and what was expected of it."""


def one_line(error: Exception) -> str:
    """Return the first line of what an error says, or its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
