"""The row schema, and one call's JSON turned into rows: every form of argument and key that msprobe writes."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

STATISTICS = ("max", "min", "mean", "norm")
# Integers beyond 2**53 do not survive a float64 column: their digits are kept as text in `value`.
EXACT_INTEGER = 2**53
CHECKSUM_NONE, CHECKSUM_CRC, CHECKSUM_XOR = 0, 1, 2
INPUT, PARAMETER, OUTPUT = 0, 1, 2

_STATISTIC_KEYS = ("Max", "Min", "Mean", "Norm")
_TENSOR_EXTRAS = ("device_mesh", "placements")
_SECTIONS = {
    "input_args": (INPUT, "input"),
    "input_kwargs": (INPUT, "input"),
    "input": (INPUT, "input"),
    "parameters": (PARAMETER, "parameters"),
    "output": (OUTPUT, "output"),
}
# group_id is a hash of group_ranks.
_NOT_AN_ARGUMENT = ("type", "group_id")
_TRISTATE = {True: 1, False: 0}
_PHASES = ("forward", "backward", "parameters_grad")
_MODULES = ("Module", "Cell")
_CRC = re.compile(r"[0-9a-f]{8}\Z")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NAN = float("nan")


class _Codes(dict[str, int]):
    """Distinct texts numbered as they come: becomes the categories of a column."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code


class Columns:
    """The rows of one dump.json under construction, a column at a time."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.recompute: list[bool] = []
        self.call, self.slot, self.type = array("i"), array("i"), array("i")
        self.dtype, self.shape = array("i"), array("i")
        self.io, self.requires_grad, self.checksum_kind = array("b"), array("b"), array("b")
        self.tensor, self.known = array("B"), array("B")
        self.statistics = tuple(array("d") for _ in STATISTICS)
        self.checksum: list[str | None] = []
        self.value: list[str | None] = []
        self.file: list[str | None] = []
        self.slots, self.types, self.dtypes, self.shapes = _Codes(), _Codes(), _Codes(), _Codes()
        self.shapes[""] = self.dtypes[""] = 0

    def add_call(self, name: str, call: Any) -> None:
        """Append the rows of one call, `data[name]` of dump.json."""
        self.names.append(name)
        if not isinstance(call, dict):  # a form no version is known to write: kept as one argument
            self.recompute.append(False)
            self._add(INPUT, "input", call)
            return
        self.recompute.append(call.get("is_recompute") is True)
        for key, value in call.items():
            if key == "is_recompute":
                continue
            io, prefix = _SECTIONS.get(key, (OUTPUT, key))
            if key in _SECTIONS or not isinstance(value, list) or len(value) != 1:
                leaves = _leaves(value, prefix)
            else:  # parameters_grad: one list of one tensor a parameter
                leaves = _leaves(value[0], prefix)
            for slot, leaf in leaves:
                self._add(io, slot, leaf)

    def _add(self, io: int, slot: str, leaf: Any) -> None:
        self.call.append(len(self.names) - 1)
        self.io.append(io)
        self.slot.append(self.slots[slot])
        if isinstance(leaf, dict) and "dtype" in leaf and "shape" in leaf:
            self._add_tensor(leaf)
        else:
            self._add_argument(leaf)

    def _add_tensor(self, leaf: dict[str, Any]) -> None:
        self.tensor.append(1)
        self.type.append(self.types[str(leaf.get("type"))])
        self.dtype.append(self.dtypes[str(leaf["dtype"])])
        self.shape.append(self.shapes[str(leaf["shape"])])
        known = 0
        extra = [f"{key}={leaf[key]}" for key in _TENSOR_EXTRAS if key in leaf]
        for bit, (key, column) in enumerate(zip(_STATISTIC_KEYS, self.statistics, strict=True)):
            number = leaf.get(key)
            if number is None:
                column.append(_NAN)
                continue
            known |= 1 << bit
            if isinstance(number, float):
                column.append(number)
            elif isinstance(number, int):
                column.append(number)
                if not -EXACT_INTEGER <= number <= EXACT_INTEGER:
                    extra.append(f"{key}={number}")
            else:  # complex and what else has no number: compared as text
                column.append(_NAN)
                extra.append(f"{key}={number}")
        self.known.append(known)
        self.requires_grad.append(_TRISTATE.get(leaf.get("requires_grad", -1), -1))
        checksum = leaf.get("md5")
        text = None if checksum is None else str(checksum)
        self.checksum.append(text)
        self.checksum_kind.append(CHECKSUM_NONE if text is None else CHECKSUM_CRC if _CRC.match(text) else CHECKSUM_XOR)
        self.value.append(" ".join(extra) or None)
        self.file.append(leaf.get("data_name"))

    def _add_argument(self, leaf: Any) -> None:
        self.tensor.append(0)
        kind, text = _argument(leaf)
        self.type.append(self.types[kind])
        self.dtype.append(0)
        self.shape.append(0)
        for column in self.statistics:
            column.append(_NAN)
        self.known.append(0)
        self.requires_grad.append(-1)
        self.checksum.append(None)
        self.checksum_kind.append(CHECKSUM_NONE)
        self.value.append(text)
        self.file.append(None)

    def frame(self) -> pd.DataFrame:
        """Return the rows added so far; the columns are documented at dump.Dump."""
        import numpy as np
        import pandas as pd

        def categorical(codes: array[int], categories: list[str]) -> pd.Categorical:
            dtype = pd.CategoricalDtype(pd.Index(categories, dtype=object))
            return pd.Categorical.from_codes(np.frombuffer(codes, dtype=np.int32), dtype=dtype)

        def text(values: list[str | None]) -> pd.Series[Any]:
            return pd.Series(values, dtype=object)

        return pd.DataFrame(
            {
                "call": categorical(self.call, self.names),
                "slot": categorical(self.slot, list(self.slots)),
                "io": np.frombuffer(self.io, dtype=np.int8),
                "type": categorical(self.type, list(self.types)),
                "tensor": np.frombuffer(self.tensor, dtype=np.bool_),
                "dtype": categorical(self.dtype, list(self.dtypes)),
                "shape": categorical(self.shape, list(self.shapes)),
                **{
                    name: np.frombuffer(column, dtype=np.float64)
                    for name, column in zip(STATISTICS, self.statistics, strict=True)
                },
                "known": np.frombuffer(self.known, dtype=np.uint8),
                "requires_grad": np.frombuffer(self.requires_grad, dtype=np.int8),
                "checksum": text(self.checksum),
                "checksum_kind": np.frombuffer(self.checksum_kind, dtype=np.int8),
                "value": text(self.value),
                "file": text(self.file),
            }
        )


def split_name(name: str) -> tuple[str, str, str, int, str]:
    """Split a call's name into kind, operation, module path, call counter and phase ("" and -1 where it has none).

    `Functional.linear.1.forward`; `Module.blocks.0.proj.Linear.forward.0`; `Module.x.Linear.parameters_grad`.
    """
    tokens = name.split(".")
    kind, last = tokens[0], tokens[-1]
    if last in _PHASES:  # an API call, or parameters_grad as 1.x and 8.x write it
        phase, rest = last, tokens[1:-1]
        index = int(rest.pop()) if rest and rest[-1].isdecimal() and kind not in _MODULES else -1
    elif len(tokens) > 2 and tokens[-2] in _PHASES and last.isdecimal():
        phase, index, rest = tokens[-2], int(last), tokens[1:-2]
    else:
        phase, index, rest = "", -1, tokens[1:]
    if kind in _MODULES:
        return kind, rest[-1] if rest else "", ".".join(rest[:-1]), index, phase
    return kind, ".".join(rest), "", index, phase


def _leaves(value: Any, slot: str) -> Iterator[tuple[str, Any]]:
    """Yield each tensor or argument of a nested value with its slot (`input.1.0`, `output.logits`)."""
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{slot}.{position}")
    elif isinstance(value, dict) and not isinstance(value.get("type"), str):
        for key, item in value.items():
            yield from _leaves(item, f"{slot}.{key}")
    else:
        yield slot, value


def _argument(leaf: Any) -> tuple[str, str]:
    """Return an argument's type and its text, equal for equal arguments of two processes."""
    if leaf is None:
        return "None", "None"
    if not isinstance(leaf, dict):
        return type(leaf).__name__, _text(leaf)
    rest = {key: item for key, item in leaf.items() if key not in _NOT_AN_ARGUMENT}
    return leaf["type"], _text(next(iter(rest.values())) if len(rest) == 1 else rest)


def _text(value: Any) -> str:
    if isinstance(value, float):
        value += 0.0  # -0.0 and 0.0 are equal in value
    return value if isinstance(value, str) and not _ADDRESS.search(value) else _ADDRESS.sub("", str(value))
