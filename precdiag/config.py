"""Resolve every command's settings: defaults < precdiag.yaml < PRECDIAG_* variables < flags.

A later command adds a section to settings.py: a `Section` subclass with a default for every key, and a line in
`Settings`.
Its YAML keys, PRECDIAG_<SECTION>_<KEY> variables, flags, error messages and `--show-config` rows follow from these two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import ValidationError

from precdiag.errors import UsageError
from precdiag.settings import Section, Settings, quoted

CONFIG_NAME = "precdiag.yaml"
PREFIX = "PRECDIAG_"

# Never settings: the first three belong to launched processes and the hook in them, the last to main().
RESERVED = frozenset({"PRECDIAG_SESSION", "PRECDIAG_OUT", "PRECDIAG_LAUNCH", "PRECDIAG_DEBUG"})

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class Given:
    """One setting as it was written (its default, if nobody wrote it) and where.

    `origin` is `default`, `precdiag.yaml:12`, `PRECDIAG_COMPARE_MAX_ABS` or `--max-abs`.
    """

    key: str
    value: object
    origin: str


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """Hold one command's validated section, and the rows that `--show-config` prints: all its keys."""

    settings: S
    rows: tuple[Given, ...]


# Where a key stands in the tree of settings: ("compare", "max_abs").
_Path = tuple[str, ...]


@dataclass(frozen=True)
class _Tree:
    """Hold the values given so far, nested as in YAML, and for each node where it was written."""

    values: dict[str, Any]
    origins: dict[_Path, str]

    def put(self, path: _Path, value: object, origin: str) -> None:
        node = self.values
        for part in path[:-1]:
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
            if not isinstance(node, dict):
                return  # the file has something else where a section stands: validation names it
        node[path[-1]] = value
        for replaced in [each for each in self.origins if each[: len(path)] == path]:
            del self.origins[replaced]
        self.origins[path] = origin

    def get(self, path: _Path) -> Any:
        node: Any = self.values
        for part in path:
            node = node.get(part) if node is not None else None
        return node

    def origin(self, path: _Path) -> str:
        """Name where the innermost known node on the way to `path` was written."""
        return next(self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins)


def load(
    section: type[S],
    flags: Mapping[str, object | None],
    *,
    config_file: Path | None,
    environ: Mapping[str, str],
    cwd: Path,
) -> Loaded[S]:
    """Resolve one command's section; the other sections and variables are checked too.

    `flags` maps keys to values (`max_abs` is --max-abs), None being "not given". Variables and flags take scalars
    and comma-separated lists; they reach a key inside a nested mapping as `baseline_cwd`, and the first key of
    one by the mapping's name alone, `baseline`. Without `config_file`, precdiag.yaml in `cwd` is read if there is
    one. Raises UsageError, in one line, for what is not a valid setting.
    """
    name = next(key for key, field in Settings.model_fields.items() if field.annotation is section)
    paths = dict(_names(Settings))
    tree = _read(config_file or cwd / CONFIG_NAME, required=config_file is not None)
    for variable, text in _variables(environ, paths).items():
        tree.put(paths[variable], text, PREFIX + variable.upper())
    for flag, value in flags.items():
        if value is not None:
            tree.put(paths[f"{name}_{flag}"], value, "--" + flag.replace("_", "-"))
    settings = _validate(tree)
    rows = tuple(_row(tree, settings, path) for path in _leaves(Settings) if path[0] == name)
    return Loaded(getattr(settings, name), rows)


def _row(tree: _Tree, settings: Settings, path: _Path) -> Given:
    value = tree.get(path)
    if value is not None:
        return Given(".".join(path), value, tree.origin(path))
    default: Any = settings
    for part in path:
        default = getattr(default, part)
    return Given(".".join(path), default, "default")


def _validate(tree: _Tree) -> Settings:
    try:
        return Settings.model_validate(tree.values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    path = tuple(str(part) for part in first["loc"])
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        siblings = [".".join(each) for each in _nodes(Settings) if each[:-1] == path[:-1]]
        near = _nearest(key, siblings)
        raise UsageError(
            f"{tree.origin(path)}: unknown key {quoted(key)}, the nearest valid key is {near}",
            hint=f"valid keys here: {', '.join(siblings)}",
        )
    # pydantic: "Input should be a valid number, unable to parse string as a number", "Value error, <ours>"
    expected = first["msg"].removeprefix("Value error, ").partition(", unable")[0]
    expected = re.sub(r"^\w+ should (be|have)", "expected", expected)
    raise UsageError(f"{tree.origin(path)}: {key} is {quoted(first['input'])}: {expected}")


def _nearest(key: str, siblings: list[str]) -> str:
    """Name the valid key most like `key`: among its siblings, or anywhere if its section was forgotten."""
    everywhere = [".".join(leaf) for leaf in _leaves(Settings)]
    close = difflib.get_close_matches(key, siblings, n=1)
    return (close or difflib.get_close_matches(key, everywhere, n=1, cutoff=0))[0]


def _variables(environ: Mapping[str, str], paths: Mapping[str, _Path]) -> dict[str, str]:
    given = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in paths or not variable.isupper():
            near = PREFIX + difflib.get_close_matches(name, paths, n=1, cutoff=0)[0].upper()
            raise UsageError(f"{variable}: unknown variable (set to {quoted(text)}), the nearest is {near}")
        given[name] = text
    return given


def _nodes(model: type[Section], prefix: _Path = ()) -> Iterator[_Path]:
    """Walk the keys of a model and of the models nested in it, outer before inner."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _nodes(field.annotation, (*prefix, name))


def _leaves(model: type[Section]) -> list[_Path]:
    nodes = list(_nodes(model))
    parents = {node[:-1] for node in nodes}
    return [node for node in nodes if node not in parents]


def _names(model: type[Section]) -> Iterator[tuple[str, _Path]]:
    """Spell each key as variables and flags do; a mapping inside a section is short for its first key."""
    leaves = _leaves(model)
    for node in _nodes(model):
        leaf = next(each for each in leaves if each[: len(node)] == node)
        if len(node) > 1:
            yield "_".join(node), leaf


def _read(file: Path, *, required: bool) -> _Tree:
    """Read one YAML file into plain mappings, lists and texts, and note the line of every node.

    Scalars stay texts, for the models know their types: `1e-3`, which YAML 1.1 takes for a string, is a number
    to them, and `007` stays what was written where a text is wanted.
    """
    shown = file.name if not required else str(file)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        if required:
            raise UsageError(f"{shown}: no such file", hint="check the path after --config") from None
        return _Tree({}, {})
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{shown}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}") from None
    origins: dict[_Path, str] = {}
    try:
        values = _plain(yaml.compose(text, Loader=yaml.SafeLoader), (), shown, origins)
    except yaml.YAMLError as error:
        raise UsageError(_yaml_problem(shown, error)) from None
    except RecursionError:
        raise UsageError(f"{shown}: nested too deeply, or an anchor that contains itself") from None
    if values is None:
        return _Tree({}, {})
    if not isinstance(values, dict):
        raise UsageError(f"{shown}: expected a mapping of sections at the top, such as `compare:`")
    return _Tree(values, origins)


def _plain(node: yaml.Node | None, path: _Path, file: str, origins: dict[_Path, str]) -> Any:
    if node is None:
        return None
    where = origins[path] = f"{file}:{node.start_mark.line + 1}"
    if node.tag not in yaml.SafeLoader.yaml_constructors:
        raise UsageError(f"{where}: the tag {node.tag} is not supported")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, str(at)), file, origins) for at, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return None if node.tag == "tag:yaml.org,2002:null" else node.value
    values: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{file}:{line}: expected a plain word as a key")
        if key.value in values:
            raise UsageError(f"{file}:{line}: {quoted(key.value)} is given twice")
        inner = (*path, key.value)
        values[key.value] = _plain(value, inner, file, origins)
        origins[inner] = f"{file}:{line}"  # the key's own line, where a list or a mapping begins below it
    return values


def _yaml_problem(file: str, error: yaml.YAMLError) -> str:
    """Put what PyYAML says over several lines into one."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        said = ", ".join(part for part in (error.context, error.problem) if part)
        return f"{file}:{error.problem_mark.line + 1}: not valid YAML: {said}"
    return f"{file}: not valid YAML: {' '.join(str(error).split())}"
