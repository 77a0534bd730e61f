"""A dumped tensor as one of torch's: for replaying calls, and for files that numpy alone cannot map."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from precdiag.archive import NUMPY_MAGIC, ZIP_MAGIC, of_numpy
from precdiag.dtypes import CARRIERS
from precdiag.errors import PrecdiagError, UnreadableError, one_line

if TYPE_CHECKING:
    from torch import Tensor


def load(path: Path) -> Tensor:
    """Map a dumped tensor (`.pt` or `.npy`, told by its first bytes) into memory, never running a pickle.

    Raises UnreadableError for anything but a plain strided tensor of a dtype in CARRIERS, and PrecdiagError without
    torch.
    """
    magic = magic_of(path)
    try:
        if magic == NUMPY_MAGIC:
            stored = of_numpy(path)
            loaded = require_torch().from_numpy(stored.values)
        else:
            loaded = _of_torch(path, magic)
    except PrecdiagError:
        raise
    except pickle.UnpicklingError as error:  # torch's own text advises to unpickle all the same
        raise UnreadableError(f"cannot be read: {path}: not a plain tensor, and no pickle is run") from error
    except Exception as error:  # a damaged file may raise anything in the unpickler
        raise UnreadableError(f"cannot be read: {path}: {one_line(error)}") from error
    if unfit := _why_unfit(loaded):
        raise UnreadableError(f"cannot be compared: {path}: {unfit}")
    return loaded.detach().resolve_conj().resolve_neg()


def magic_of(path: Path) -> bytes:
    """Return the first bytes of a file, which tell its format. Raises UnreadableError where it cannot be opened."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a file")
        with path.open("rb") as file:
            return file.read(len(NUMPY_MAGIC))
    except FileNotFoundError as error:
        raise UnreadableError(f"file missing: {path}") from error
    except OSError as error:
        raise UnreadableError(f"cannot be read: {path}: {one_line(error)}") from error


def require_torch() -> ModuleType:
    """Import torch, or raise PrecdiagError that says how to get it."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise PrecdiagError(f"torch cannot be imported: {one_line(error)}") from error
        raise PrecdiagError("torch is not installed", hint="pip install 'precdiag[tensor]'") from error
    except Exception as error:  # torch-npu without CANN fails inside `import torch`
        raise PrecdiagError(
            f"torch cannot be imported: {one_line(error)}",
            hint="with torch-npu but no CANN set TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        ) from error
    return torch


def import_beside() -> threading.Thread:
    """Import torch, which takes a second, beside other work; whoever forks a process must wait for it first."""

    def attempt() -> None:
        with suppress(PrecdiagError):  # whoever needs it hears why
            require_torch()

    thread = threading.Thread(target=attempt)
    thread.start()
    return thread


@contextmanager
def quietly() -> Iterator[None]:
    """Keep torch's warnings off stderr, and torch to one thread. Raises PrecdiagError where there is no torch.

    A forked process must not run an operator in several: those of its parent, which torch counts on, are not there.
    On a busy machine the threads of an operator wait for one another for whole time slices: what takes 0.5 s took 2 to
    20 s beside two busy processes. On an idle one two threads save a third of the time.
    """
    torch = require_torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _of_torch(path: Path, magic: bytes) -> Any:
    with quietly():
        # str(): torch 2.1 maps no Path
        return require_torch().load(str(path), map_location="cpu", mmap=magic.startswith(ZIP_MAGIC), weights_only=True)


def _why_unfit(loaded: Any) -> str:
    import torch

    if type(loaded) is not torch.Tensor:
        return f"it holds a {type(loaded).__name__}, not a plain tensor"
    if loaded.layout is not torch.strided or loaded.is_nested or loaded.device.type != "cpu":
        return f"the tensor is nested, sparse or without data ({loaded.layout}, {loaded.device.type})"
    if str(loaded.dtype).removeprefix("torch.") not in CARRIERS:
        return f"no rule for dtype {loaded.dtype}"
    return ""
