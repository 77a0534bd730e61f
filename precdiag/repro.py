"""Write one call of two dumps as a folder that reproduces it with torch alone: its inputs, its outputs, a script."""

from __future__ import annotations

from pathlib import Path

from precdiag.comparison import Comparison
from precdiag.dump import Dump, read_dump
from precdiag.errors import PrecdiagError, UsageError
from precdiag.finding import Row
from precdiag.replay import Call, UnreplayableError, rebuild
from precdiag.rounding import Rounding
from precdiag.torchfile import require_torch

SCRIPT = "repro.py"

_FORWARD = """    made = {function}(*args, **kwargs)
    return list(made) if isinstance(made, (tuple, list)) else [made]
"""
_LAST_OPERATION = """    made = {function}(*args, **kwargs)
    found = made.grad_fn(call["gradient"].to(made))
    return list(found) if isinstance(found, tuple) else [found]
"""
_WHOLE = """    made = {function}(*args, **kwargs)
    leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    return list(torch.autograd.grad(made, leaves, call["gradient"].to(made)))
"""
_TEMPLATE = '''"""{name}: what each side gave out, against float64 from its own inputs.

    python {script} [DEVICE]      DEVICE (npu, cuda, cpu) runs the call again there, as it was dumped
"""
import sys
from pathlib import Path

import torch


def run(call, device="cpu", kind=None):
    def own(x):
        if isinstance(x, (tuple, list)):
            return [own(item) for item in x]
        if isinstance(x, torch.dtype) and x.is_floating_point:
            return kind or x
        if not isinstance(x, torch.Tensor):
            return x
        if not x.is_floating_point():
            return x.to(device)
        return x.to(device, kind).requires_grad_({backward})

    args, kwargs = own(call["args"]), {{key: own(value) for key, value in call["kwargs"].items()}}
{body}

def error(exact, other):
    return ((other.detach().cpu().double() - exact.detach()).norm() / exact.detach().norm()).item()


for side in ("baseline", "candidate"):
    call = torch.load(Path(__file__).with_name(side + ".pt"), weights_only=False)
    exact = run(call, kind=torch.float64)
    for slot, at in call["slots"].items():
        print(f"{{side:<10}} {{slot:<12}} dumped {{error(exact[at], call['outputs'][slot]):.3g}}", end="")
        print(f"  on {{sys.argv[1]}} {{error(exact[at], run(call, sys.argv[1])[at]):.3g}}" if sys.argv[1:] else "")
'''


def check_unused(folder: Path | None) -> None:
    """Raise UsageError where a reproduction would write over something; None writes nothing."""
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is in use", hint="give --repro a new folder")


def reproduce(comparison: Comparison, folder: Path) -> Path:
    """Write the call that is beyond rounding, else the steepest jump, into a new folder; return its script.

    Raises PrecdiagError where there is none, or it cannot be rebuilt from the dumps.
    """
    part = next((part for part in comparison.parts if part.rounding and part.rounding == comparison.rounding), None)
    row = None if comparison.rounding is None else row_to_reproduce(comparison.rounding)
    if part is None or row is None:
        raise PrecdiagError("nothing to reproduce: no call gives out what differs", hint="leave out --repro")
    return write_repro(folder, read_dump(part.baseline), read_dump(part.candidate), (row.call, row.partner or row.call))


def row_to_reproduce(rounding: Rounding) -> Row | None:
    """Return the row beyond rounding, else that of the steepest jump."""
    if rounding.beyond is not None:
        return rounding.beyond.row
    jumps = rounding.jumps
    return max(jumps, key=lambda jump: jump.times).row if jumps else None


def write_repro(folder: Path, baseline: Dump, candidate: Dump, names: tuple[str, str]) -> Path:
    """Write the call that has these names on the two sides into a folder; return its script.

    Raises UsageError where the folder is in use, PrecdiagError where the call cannot be rebuilt from the dumps.
    """
    torch = require_torch()
    check_unused(folder)
    try:
        calls = [rebuild(dump, name) for dump, name in zip((baseline, candidate), names, strict=True)]
    except (UnreplayableError, PrecdiagError) as error:
        raise PrecdiagError(
            f"{names[0]} cannot be reproduced: {error}",
            hint="plain torch functions and standard modules can, from dumps of --task tensor",
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for side, call in zip(("baseline", "candidate"), calls, strict=True):
            torch.save(_contents(call), folder / f"{side}.pt")
        (folder / SCRIPT).write_text(script_of(names[0], calls[0]), encoding="utf-8")
    except OSError as error:
        raise PrecdiagError(f"cannot write to {folder}: {error.strerror}", hint="choose another --repro") from error
    return folder / SCRIPT


def script_of(name: str, call: Call) -> str:
    """Return the script that reproduces a call."""
    backward = call.gradient is not None
    body = (_WHOLE if call.whole else _LAST_OPERATION) if backward else _FORWARD
    function = call.function
    return _TEMPLATE.format(name=name, script=SCRIPT, backward=backward, body=body.format(function=function))


def _contents(call: Call) -> dict[str, object]:
    """What the script needs of a call: slots say which of its results each output is."""
    import torch

    if call.whole:
        floats = [
            name
            for name, arg in zip(call.names, call.args, strict=False)
            if isinstance(arg, torch.Tensor) and arg.is_floating_point()
        ]
        place = {f"output.{name}" if name.isdecimal() else name: at for at, name in enumerate(floats)}
    else:
        place = {slot: int(slot.rpartition(".")[2]) for slot in call.outputs if slot.rpartition(".")[2].isdecimal()}
    slots = {slot: place[slot] for slot in call.outputs if slot in place}
    return {
        "args": [_own(arg) for arg in call.args],
        "kwargs": {key: _own(value) for key, value in call.kwargs.items()},
        "outputs": {slot: _own(value) for slot, value in call.outputs.items()},
        "gradient": None if call.gradient is None else _own(call.gradient),
        "slots": slots,
    }


def _own(value: object) -> object:
    """A copy that does not hold on to the file it was mapped from."""
    import torch

    if isinstance(value, list):
        return [_own(item) for item in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
