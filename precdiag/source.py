"""Where in the user's code a call was made: from the recorded stack to one file and line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from precdiag.dump import Dump

_FRAME = re.compile(
    r"File (?P<file>.*), line (?P<line>\d+), in (?P<function>[^\n]*?),?\s*(?:\n\s*(?P<code>.*))?\Z", re.S
)
# Frames of the machinery that wraps every call: the source line people want is further out.
_MACHINERY = re.compile(r"(?:^|[/\\])(?:torch|torch_npu|msprobe|mindspore|precdiag)[/\\]")
_OUTSIDE_PACKAGES = re.compile(r"(?:site|dist)-packages[/\\]")
# Frames inside an optimizer's step or gradient clipping.
OPTIMIZES = re.compile(r"torch[/\\]optim[/\\]|, in (?:step|_single_tensor_\w+|_multi_tensor_\w+|clip_grad_norm_?)\b")
_COUNTER = re.compile(r"\.(?:backward|parameters_grad)(?P<index>\.\d+)?\Z")


@dataclass(frozen=True)
class Source:
    """One line of the user's code."""

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.code}"


def stack_of(dump: Dump, call: str) -> tuple[str, ...]:
    """Return a call's stack, innermost frame first; () where there is none.

    Backward and parameters_grad calls have no stack of their own: theirs is that of the forward call of the same name
    and index.
    """
    return dump.stack(call) or dump.stack(forward_of(call))


def forward_of(call: str) -> str:
    """Return the name of the forward call that a backward call or a module's gradients belong to."""
    forward = _COUNTER.sub(lambda match: f".forward{match['index'] or ''}", call)
    if forward.startswith(("Module.", "Cell.")) and re.search(r"\.forward\Z", forward):
        forward += ".0"  # parameters_grad as 1.x and 8.x write it, without a counter
    return forward


def source_of(stack: tuple[str, ...]) -> Source | None:
    """Return the innermost frame that is not torch's, torch_npu's or msprobe's own; None where there is none."""
    for text in stack:
        match = _FRAME.match(text)
        if match and not _is_machinery(match["file"]):
            return Source(match["file"], int(match["line"]), (match["code"] or "").strip())
    return None


def _is_machinery(file: str) -> bool:
    """A package of that name under site-packages, or frozen code; a user's own folder named torch is not."""
    inside = _OUTSIDE_PACKAGES.split(file)
    if len(inside) > 1:
        return _MACHINERY.search("/" + inside[-1]) is not None
    return file.startswith("<frozen") or "/torch/nn/modules/" in file.replace("\\", "/")
