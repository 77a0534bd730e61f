"""The row schema, and calls' JSON turned into rows: every form of argument and key that msprobe writes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from precdiag.decode import plain

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

STATISTICS = ("max", "min", "mean", "norm")
# Integers beyond 2**53 do not survive a float64 column: their digits are kept as text in `value`.
EXACT_INTEGER = 2**53
CHECKSUM_NONE, CHECKSUM_CRC, CHECKSUM_XOR = 0, 1, 2
INPUT, PARAMETER, OUTPUT = 0, 1, 2
# Scopes of what changes weights or scales gradients in place, as construct.json names them.
UPDATE_SCOPES = ("optimizer", "clip_grad")

_STATISTIC_KEYS = ("Max", "Min", "Mean", "Norm")
_ALWAYS_KEYS = ("type", "dtype", "shape", "requires_grad", *_STATISTIC_KEYS)
_ALWAYS = itemgetter(*_ALWAYS_KEYS)
_NUMERIC = {float, int, bool, type(None)}
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


class _Codes(dict[Any, int]):
    """Distinct values numbered as they come: becomes the categories of a column."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code


class Columns:
    """The rows of one dump.json under construction: some calls at a time, each column at once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.recompute: list[bool] = []
        self._row_counts: list[int] = []
        self._places, self._types, self._dtypes, self._shapes = _Codes(), _Codes(), _Codes(), _Codes()
        self._dtypes[""] = self._shapes[""] = 0
        self._spelt = _Spelt(self._shapes)
        self._slots: dict[tuple[str, int], list[int]] = {}
        self._parts: list[dict[str, np.ndarray]] = []

    def __len__(self) -> int:
        return sum(self._row_counts)

    def add_calls(self, calls: Mapping[str, Any]) -> None:
        """Append the rows of some calls, entries of `data` of dump.json."""
        places: list[int] = []
        leaves: list[Any] = []
        for name, call in calls.items():
            before = len(leaves)
            if isinstance(call, dict):
                self._walk(call, places, leaves)
            else:  # a form no version is known to write: kept as one argument
                self._add(INPUT, "input", call, places, leaves)
            self.names.append(name)
            self.recompute.append(isinstance(call, dict) and call.get("is_recompute") is True)
            self._row_counts.append(len(leaves) - before)
        if leaves:
            self._parts.append(self._columns_of(leaves) | {"place": _integers(places)})

    def frame(self) -> pd.DataFrame:
        """Return the rows added, once; the columns are documented at dump.Dump."""
        import numpy as np
        import pandas as pd

        empty = self._columns_of([]) | {"place": _integers([])}
        # Each column's parts are let go once it stands whole: a million calls would be in memory twice.
        column = {
            key: np.concatenate([values, *(part.pop(key) for part in self._parts)]) for key, values in empty.items()
        }
        slots = _Codes()
        slot_of_place = _integers([slots[slot] for _, slot in self._places])
        io_of_place = np.array([io for io, _ in self._places], dtype=np.int8)
        call = np.repeat(np.arange(len(self.names), dtype=np.int32), self._row_counts)

        def categorical(codes: np.ndarray, categories: Iterable[str]) -> pd.Categorical:
            return pd.Categorical.from_codes(codes, dtype=pd.CategoricalDtype(pd.Index(list(categories), dtype=object)))

        return pd.DataFrame(
            {
                "call": categorical(call, self.names),
                "slot": categorical(slot_of_place[column["place"]], slots),
                "io": io_of_place[column["place"]],
                "type": categorical(column["type"], self._types),
                "tensor": column["tensor"],
                "dtype": categorical(column["dtype"], self._dtypes),
                "shape": categorical(column["shape"], self._shapes),
                **{name: column[name] for name in (*STATISTICS, "known", "requires_grad")},
                "checksum": pd.Series(column["checksum"], dtype=object),
                "checksum_kind": column["checksum_kind"],
                "value": pd.Series(column["value"], dtype=object),
                "file": pd.Series(column["file"], dtype=object),
            }
        )

    def _walk(self, call: dict[str, Any], places: list[int], leaves: list[Any]) -> None:
        for key, value in call.items():
            if key == "is_recompute":
                continue
            io, prefix = _SECTIONS.get(key, (OUTPUT, key))
            if key not in _SECTIONS and isinstance(value, list) and len(value) == 1:
                value = value[0]  # parameters_grad: one list of one tensor a parameter
            if not isinstance(value, list):
                self._add(io, prefix, value, places, leaves)
                continue
            codes = self._slots.setdefault((prefix, io), [])
            for position, item in enumerate(value):
                if position == len(codes):
                    codes.append(self._places[io, f"{prefix}.{position}"])
                if item is None or (type(item) is dict and type(item.get("type")) is str):  # by far the most
                    places.append(codes[position])
                    leaves.append(item)
                else:
                    self._add(io, f"{prefix}.{position}", item, places, leaves)

    def _add(self, io: int, slot: str, value: Any, places: list[int], leaves: list[Any]) -> None:
        for place, leaf in _leaves(value, slot):
            places.append(self._places[io, place])
            leaves.append(leaf)

    def _columns_of(self, leaves: list[Any]) -> dict[str, np.ndarray]:
        import numpy as np

        mask = [isinstance(leaf, dict) and _is_tensor(leaf) for leaf in leaves]
        tensor = np.array(mask, dtype=np.bool_)
        columns = self._tensor_columns(list(compress(leaves, mask)))
        arguments = [_argument(leaf) for leaf, is_tensor in zip(leaves, mask, strict=True) if not is_tensor]
        columns |= {"tensor": np.ones(len(columns["type"]), dtype=np.bool_)}
        elsewhere = {name: _NAN for name in STATISTICS} | {"requires_grad": -1}
        spread = {}
        for key, values in columns.items():
            fill = elsewhere.get(key, None if values.dtype == object else 0)
            spread[key] = column = np.full(len(leaves), fill, dtype=values.dtype)
            column[tensor] = values
        spread["type"][~tensor] = _coded([kind for kind, _ in arguments], self._types)
        spread["value"][~tensor] = _objects([text for _, text in arguments])
        return spread

    def _tensor_columns(self, tensors: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        import numpy as np

        try:
            fields = list(zip(*map(_ALWAYS, tensors), strict=True)) or [()] * len(_ALWAYS_KEYS)
        except KeyError:  # null statistics left out, or a form of its own
            fields = [tuple(leaf.get(key) for leaf in tensors) for key in _ALWAYS_KEYS]
        types, dtypes, shapes, grads, *statistics = fields
        columns = {
            "type": _coded(types, self._types),
            "dtype": _coded(dtypes, self._dtypes),
            "shape": self._coded_shapes(shapes),
            "requires_grad": np.array([_TRISTATE.get(grad, -1) for grad in grads], dtype=np.int8),
        }
        more = set(map(len, tensors)) - {len(_ALWAYS_KEYS)}  # else no tensor has a further key
        texts = _extra_texts(tensors) if more else {}
        known = np.zeros(len(tensors), dtype=np.uint8)
        for bit, (key, name, values) in enumerate(zip(_STATISTIC_KEYS, STATISTICS, statistics, strict=True)):
            columns[name], there = _numbers(values, key, texts)
            known |= there.astype(np.uint8) << np.uint8(bit)
        nothing: list[Any] = [None] * len(tensors)
        given = [leaf.get("md5") for leaf in tensors] if more else nothing
        checksums = [None if checksum is None else str(plain(checksum)) for checksum in given] if any(given) else given
        return columns | {
            "known": known,
            "checksum": _objects(checksums),
            "checksum_kind": np.array([_checksum_kind(text) for text in checksums], dtype=np.int8),
            "file": _objects([_file_name(leaf.get("data_name")) for leaf in tensors] if more else nothing),
            "value": _objects([" ".join(texts[at]) if at in texts else None for at in range(len(tensors))]),
        }

    def _coded_shapes(self, shapes: Sequence[Any]) -> np.ndarray:
        """Spell shapes as Python spells lists, each distinct one once."""
        if set(map(type, shapes)) <= {list} and set(map(type, chain.from_iterable(shapes))) <= {int}:
            return _integers(list(map(self._spelt.__getitem__, map(tuple, shapes))))
        return _coded([str(plain(shape)) for shape in shapes], self._shapes)


class _Spelt(dict[tuple[int, ...], int]):
    """Shapes as tuples → their codes among the texts."""

    def __init__(self, texts: _Codes) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, shape: tuple[int, ...]) -> int:
        self[shape] = code = self._texts[str(list(shape))]
        return code


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
    module = ".".join(rest[:-1]) if kind in _MODULES else ""
    operation = ".".join(rest[-1:] if kind in _MODULES else rest)
    share = sys.intern  # few are distinct, and a million calls hold them
    return share(kind), share(operation), share(module), index, share(phase)


def split_names(names: Iterable[str]) -> pd.DataFrame:
    """Split calls' names: columns name, and what `split_name` returns (index int64, else object), one line a name."""
    import pandas as pd

    names = list(names)
    split = list(map(split_name, names))
    columns = {
        key: pd.Series([part[at] for part in split], dtype="int64" if key == "index" else object)
        for at, key in enumerate(("kind", "operation", "module", "index", "phase"))
    }
    return pd.DataFrame({"name": pd.Series(names, dtype=object), **columns})


def _leaves(value: Any, slot: str) -> Iterator[tuple[str, Any]]:
    """Yield each tensor or argument of a nested value with its slot (`input.1.0`, `output.logits`)."""
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{slot}.{position}")
    elif isinstance(value, dict) and not isinstance(value.get("type"), str) and not _is_tensor(value):
        for key, item in value.items():
            yield from _leaves(item, f"{slot}.{key}")
    else:
        yield slot, value


def _is_tensor(entry: dict[str, Any]) -> bool:
    """Whether an entry is a tensor's, be it one that lacks a key: its statistics must not pass unseen."""
    return ("dtype" in entry and "shape" in entry) or ("Max" in entry and "Min" in entry)


def _argument(leaf: Any) -> tuple[str, str]:
    """Return an argument's type and its text, equal for equal arguments of two processes."""
    if leaf is None:
        return "None", "None"
    if not isinstance(leaf, dict):
        leaf = plain(leaf)
        return type(leaf).__name__, _text(leaf)
    if len(leaf) == 2 and type(value := leaf.get("value")) in (int, bool):  # by far the most
        return leaf["type"], sys.intern(str(value))
    rest = {key: item for key, item in plain(leaf).items() if key not in _NOT_AN_ARGUMENT}
    return leaf["type"], _text(next(iter(rest.values())) if len(rest) == 1 else rest)


def _text(value: Any) -> str:
    """Spell an argument, equal ones as one object: most calls are given the same few."""
    if isinstance(value, float):
        value += 0.0  # -0.0 and 0.0 are equal in value
    text = value if isinstance(value, str) and not _ADDRESS.search(value) else _ADDRESS.sub("", str(value))
    # A file name that was no UTF-8 arrives with lone surrogates, which nothing can hash or print.
    return sys.intern(text if text.isascii() else text.encode(errors="backslashreplace").decode())


def _file_name(given: Any) -> str | None:
    return given if given is None or isinstance(given, str) else str(plain(given))


def _integers(codes: list[int]) -> np.ndarray:
    import numpy as np

    return np.array(codes, dtype=np.int32)


def _objects(values: list[Any]) -> np.ndarray:
    import numpy as np

    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _coded(values: Sequence[Any], codes: _Codes) -> np.ndarray:
    if not set(map(type, values)) <= {str}:
        values = [str(plain(value)) for value in values]
    return _integers(list(map(codes.__getitem__, values)))


def _extra_texts(tensors: list[dict[str, Any]]) -> dict[int, list[str]]:
    return {
        at: [f"{key}={plain(leaf[key])}" for key in _TENSOR_EXTRAS if key in leaf]
        for at, leaf in enumerate(tensors)
        if "device_mesh" in leaf or "placements" in leaf
    }


def _numbers(values: Sequence[Any], key: str, texts: dict[int, list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return one statistic of tensors as float64, NaN where it has no number, and where it stands (bool).

    What float64 does not hold goes to `texts` by position: integers beyond 2**53, and complex and what else has no
    number, which are compared as text.
    """
    import numpy as np

    kinds = set(map(type, values))
    there = np.ones(len(values), dtype=np.bool_)
    if type(None) in kinds:
        there = np.array([value is not None for value in values], dtype=np.bool_)
    if not kinds <= _NUMERIC:
        values = [plain(value) if type(value) is str else value for value in values]
        for at, value in enumerate(values):
            if type(value) not in _NUMERIC:
                texts.setdefault(at, []).append(f"{key}={plain(value)}")
        values = [value if type(value) in _NUMERIC else None for value in values]
    try:
        numbers = np.array(values, dtype=np.float64)  # None becomes NaN
    except OverflowError:  # an integer beyond float64
        numbers = np.array([_held(value) for value in values], dtype=np.float64)
    if int in kinds:
        for at in np.flatnonzero(np.abs(numbers) >= EXACT_INTEGER).tolist():
            if type(values[at]) is int and abs(values[at]) > EXACT_INTEGER:
                texts.setdefault(at, []).append(f"{key}={values[at]}")
    return numbers, there


def _held(value: Any) -> Any:
    """Return a number as float64 can hold it: an integer beyond that as the largest float of its sign."""
    if type(value) is not int or abs(value) <= sys.float_info.max:
        return value
    return sys.float_info.max if value > 0 else -sys.float_info.max


def _checksum_kind(text: str | None) -> int:
    return CHECKSUM_NONE if text is None else CHECKSUM_CRC if _CRC.match(text) else CHECKSUM_XOR
