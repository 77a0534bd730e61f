"""Read what --map says of names: our own form, and msprobe's api, cell, layer and data mappings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from precdiag.bridge import Renames
from precdiag.errors import UsageError
from precdiag.identity import subjects_of
from precdiag.replacements import Replacement, read_replacements

if TYPE_CHECKING:
    import pandas as pd

_OWN_KEYS = frozenset({"calls", "modules", "replaced"})
_API_KEYS = frozenset({"ms_api", "pt_api"})
# A name with its direction is that of one call; what may follow names one of its rows.
_CALL = re.compile(
    r"(?P<call>.+\.(?:forward|backward|parameters_grad)(?:\.\d+)?)(?:\.(?:input|output|parameters)\b.*)?\Z"
)
_ONE_CALL = re.compile(r"\.(?:forward|backward|parameters_grad)\b")
_TOP = ("TopLayer", "Cell")
_HINT = (
    "expected calls: {BASELINE: CANDIDATE}, modules: {BASELINE: CANDIDATE} or replaced: {NAME: {fused, needs}}, "
    "or one of msprobe's own mapping files"
)


@dataclass(frozen=True)
class CallMap:
    """What the user says about names.

    `calls`, `modules`: (baseline, candidate) patterns; `*` stands for anything and is carried over in order; a module's
    pattern also renames what is inside it. `forced`: (baseline, candidate) names of single calls. `cells`: msprobe's
    cell mapping, {candidate: baseline} of `path.Class` or a piece of it. `layers`: msprobe's layer mapping,
    {class: {candidate's child: baseline's child}}. `replacements`: known replacements beside ours.
    """

    calls: tuple[tuple[str, str], ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    forced: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    replacements: tuple[Replacement, ...] = ()

    def renames(self, baseline: pd.DataFrame, candidate: pd.DataFrame) -> Renames:
        """Apply the map to the calls of two dumps: which subject of the baseline is which of the candidate."""
        mapped: dict[str, str] = {}
        for subject in subjects_of(baseline).unique():
            kind, _, path = subject.partition(".")
            target = _renamed_path(path, self.modules) if kind == "Module" else _renamed(subject, self.calls)
            if target is not None:
                mapped[subject] = f"Module.{target}" if kind == "Module" else target
        for theirs, ours in self._reversed(candidate).items():
            mapped.setdefault(ours, theirs)
        return Renames(mapped=mapped, forced=self.forced)

    def _reversed(self, candidate: pd.DataFrame) -> dict[str, str]:
        """What msprobe's mappings, which go from candidate to baseline, make of the candidate's modules."""
        if not self.cells and not self.layers:
            return {}
        modules = candidate[candidate["module"] != ""]
        classes = dict(zip(modules["module"], modules["operation"], strict=True))
        found: dict[str, str] = {}
        for path, operation in classes.items():
            ours = self._by_layer(path, classes) if self.layers else self._by_cell(f"{path}.{operation}")
            if ours != path:
                found[f"Module.{path}"] = f"Module.{ours}"
        return found

    def _by_cell(self, cell: str) -> str:
        new = self.cells.get(cell)
        if new is None:
            new = cell
            for piece, ours in self.cells.items():
                new = new.replace(piece, ours, 1)
        return new.rpartition(".")[0]

    def _by_layer(self, path: str, classes: Mapping[str, str]) -> str:
        tokens, new, at = path.split("."), [], 0
        while at < len(tokens):
            around = classes.get(".".join(tokens[:at]), "") if at else _TOP[0]
            names = self.layers.get(around, {})
            fitting = [name for name in names if tokens[at : at + name.count(".") + 1] == name.split(".")]
            name = max(fitting, key=len, default=tokens[at])
            new.append(names.get(name, name))
            at += name.count(".") + 1
        return ".".join(new)


def read_map(path: Path) -> CallMap:
    """Read a mapping file. Raises UsageError, in one line, where it is none of the known forms."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--map: {path}: cannot be read ({error})", hint=_HINT) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"--map: {path}{where}: not YAML", hint=_HINT) from None
    try:
        return _interpreted(content)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UsageError(f"--map: {path}: {error}", hint=_HINT) from None


def _interpreted(content: Any) -> CallMap:
    if isinstance(content, list) or (isinstance(content, dict) and content.keys() & _API_KEYS):
        return _api_mapping(content if isinstance(content, list) else [content])
    if not isinstance(content, dict) or not content:
        raise ValueError("holds no mapping")
    if content.keys() <= _OWN_KEYS:
        calls = _texts(content.get("calls") or {})
        forced = {ours: theirs for ours, theirs in calls.items() if _ONE_CALL.search(ours)}
        return CallMap(
            calls=tuple((ours, theirs) for ours, theirs in calls.items() if ours not in forced),
            modules=tuple(_texts(content.get("modules") or {}).items()),
            forced=forced,
            replacements=read_replacements(content.get("replaced") or {}),
        )
    if content.keys() & _OWN_KEYS:
        strange = ", ".join(sorted(map(str, content.keys() - _OWN_KEYS)))
        raise ValueError(f"unknown key {strange}")
    if all(isinstance(value, dict) for value in content.values()):
        layers = {str(name): _layer(names) for name, names in content.items()}
        return CallMap(layers={**layers, _TOP[0]: {**layers.get(_TOP[1], {}), **layers.get(_TOP[0], {})}})
    texts = _texts(content)
    if all(_CALL.match(name) for name in texts):
        return CallMap(forced=_data_mapping(texts))
    return CallMap(cells=texts)


def _api_mapping(entries: Iterable[Any]) -> CallMap:
    """msprobe's api mapping: `ms_api` is the candidate's, `pt_api` the baseline's."""
    calls = []
    for entry in entries:
        if not isinstance(entry, dict) or not entry.keys() >= _API_KEYS:
            raise ValueError("an api mapping's entries have ms_api and pt_api")
        calls.append((str(entry["pt_api"]), str(entry["ms_api"])))
    return CallMap(calls=tuple(calls))


def _data_mapping(texts: Mapping[str, str]) -> dict[str, str]:
    """msprobe's data mapping, and the api mapping that it writes: candidate's names to the baseline's."""
    forced: dict[str, str] = {}
    for theirs, ours in texts.items():
        left, right = _CALL.match(ours), _CALL.match(theirs)
        if left and right:  # `N/A` stands for no partner
            forced.setdefault(left["call"], right["call"])
    return forced


def _layer(names: Mapping[Any, Any]) -> dict[str, str]:
    return {str(theirs): str(ours).partition("(")[0] for theirs, ours in names.items()}


def _texts(content: Any) -> dict[str, str]:
    if not isinstance(content, dict) or any(isinstance(value, dict | list) for value in content.values()):
        raise ValueError("expected names to names")
    return {str(key): str(value) for key, value in content.items()}


def _renamed(name: str, rules: Iterable[tuple[str, str]]) -> str | None:
    """Return what the first fitting rule makes of a name, None where none fits."""
    for pattern, target in rules:
        match = re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), name)
        if match:
            pieces = target.split("*")
            carried = [*match.groups(), *[""] * len(pieces)]
            return pieces[0] + "".join(text + piece for text, piece in zip(carried, pieces[1:], strict=False))
    return None


def _renamed_path(path: str, rules: Iterable[tuple[str, str]]) -> str | None:
    """Rename a module's path, or the path of a module around it; the innermost that fits."""
    tokens = path.split(".")
    for end in range(len(tokens), 0, -1):
        new = _renamed(".".join(tokens[:end]), rules)
        if new is not None:
            return ".".join([new, *tokens[end:]])
    return None
