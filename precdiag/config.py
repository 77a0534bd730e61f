"""Resolve every command's settings: defaults < precdiag.yaml < PRECDIAG_* variables < flags.

A later command adds a section: a `Section` subclass with a default for every key, and a line in `Settings`.
Its YAML keys, PRECDIAG_<SECTION>_<KEY> variables, flags, error messages and `--show-config` rows follow from these two.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from precdiag.errors import UsageError

CONFIG_NAME = "precdiag.yaml"
PREFIX = "PRECDIAG_"

# Never settings: the first three belong to launched processes and the hook in them, the last to main().
RESERVED = frozenset({"PRECDIAG_SESSION", "PRECDIAG_OUT", "PRECDIAG_LAUNCH", "PRECDIAG_DEBUG"})

# More steps or ranks than any run has: a slip such as 0-99999999 is refused before it fills the memory.
MOST_INTEGERS = 1_000_000

# A value quoted in an error keeps the message on one line of a terminal.
QUOTED_LENGTH = 60


def parse_integers(text: str) -> tuple[int, ...]:
    """Parse a list of steps or ranks such as `0,5-7` into sorted integers: (0, 5, 6, 7).

    Raises UsageError for anything but non-negative integers and ascending ranges, for an integer given twice
    and for more than `MOST_INTEGERS` of them.
    """
    ranges = [_parse_range(item.strip()) for item in text.split(",")]
    if sum(len(each) for each in ranges) > MOST_INTEGERS:
        raise UsageError(f"more than {MOST_INTEGERS:,} integers")
    counts = Counter(number for each in ranges for number in each)
    twice = next((number for number, count in counts.items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is given twice")
    return tuple(sorted(counts))


def _integers(given: object) -> tuple[int, ...]:
    """Accept `0,5-7`, one integer, or a list of either, as YAML writes them."""
    items = given if isinstance(given, list | tuple) else [given]
    try:
        return parse_integers(",".join(str(item) for item in items))
    except UsageError as error:
        raise ValueError(str(error)) from error


def _window(given: object) -> str:
    """Accept steps as above, or `iter:` and the log's own numbers; return them as one text."""
    text = ",".join(str(item) for item in given) if isinstance(given, list | tuple) else str(given)
    try:
        parse_integers(text.removeprefix("iter:"))
    except UsageError as error:
        raise ValueError(str(error)) from error
    return text


def _texts(given: object) -> object:
    """Split the text of a variable or a flag at its commas; YAML has lists of its own."""
    return [item.strip() for item in given.split(",")] if isinstance(given, str) else given


def _pairs(given: object) -> object:
    """Accept `0=1,4-7=0-3`, a list of such texts, or a mapping, as YAML writes it; baseline to candidate."""
    if isinstance(given, Mapping):
        return dict(given)
    items = given if isinstance(given, list | tuple) else str(given).split(",")
    pairs: dict[int, int] = {}
    for item in items:
        left, equals, right = str(item).partition("=")
        try:
            baseline, candidate = _parse_range(left.strip()), _parse_range(right.strip())
        except UsageError as error:
            wanted = "" if equals else "expected BASELINE=CANDIDATE, as in 0=1,4-7=0-3: "
            raise ValueError(wanted + str(error)) from error
        if len(baseline) != len(candidate) or len(baseline) > MOST_INTEGERS:
            raise ValueError(f"{item} pairs {len(baseline)} with {len(candidate)} numbers")
        _put_pairs(pairs, zip(baseline, candidate, strict=True))
    return pairs


def _name_pairs(given: object) -> object:
    """Accept `actor=actor_rollout,ref=ref`, a list of such texts, or a mapping."""
    if isinstance(given, Mapping):
        return dict(given)
    items = given if isinstance(given, list | tuple) else str(given).split(",")
    pairs: dict[str, str] = {}
    for item in items:
        left, equals, right = (each.strip() for each in str(item).partition("="))
        if not (left and equals and right):
            raise ValueError("expected BASELINE=CANDIDATE, as in actor=actor_rollout")
        _put_pairs(pairs, [(left, right)])
    return pairs


def _sizes(given: object) -> object:
    """Accept `tp=2,pp=4`, a list of such texts, or a mapping."""
    if isinstance(given, Mapping):
        return dict(given)
    items = given if isinstance(given, list | tuple) else str(given).split(",")
    pairs = [tuple(each.strip() for each in str(item).partition("=")) for item in items]
    if not all(name and size for name, _, size in pairs):
        raise ValueError("expected sizes by name, as in tp=2,pp=4,vpp=2")
    return {name: size for name, _, size in pairs}


def _put_pairs(pairs: dict[Any, Any], more: Iterable[tuple[Any, Any]]) -> None:
    for baseline, candidate in more:
        if baseline in pairs or candidate in pairs.values():
            raise ValueError(f"{baseline}={candidate}: one of the two is paired already")
        pairs[baseline] = candidate


def _one_to_one(pairs: dict[Any, Any]) -> dict[Any, Any]:
    if len(set(pairs.values())) < len(pairs):
        raise ValueError("one of the candidate's is paired twice")
    return pairs


Integers = Annotated[tuple[int, ...], BeforeValidator(_integers)]
Window = Annotated[str, BeforeValidator(_window)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Text = Annotated[str, Field(min_length=1)]
NumberPairs = Annotated[dict[int, int], BeforeValidator(_pairs), AfterValidator(_one_to_one)]
NamePairs = Annotated[dict[str, str], BeforeValidator(_name_pairs), AfterValidator(_one_to_one)]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=2)]


Layout = Annotated[dict[Literal["tp", "cp", "pp", "vpp", "sp"], Annotated[int, Field(ge=0)]], BeforeValidator(_sizes)]


class Section(BaseModel):
    """Hold the keys of one section, or of a mapping nested in one; null in YAML is "not given"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            raise ValueError("expected a mapping of keys to values")
        known = cls.model_fields
        return {key: value for key, value in given.items() if value is not None or key not in known}


class CompareSettings(Section):
    """Hold what `precdiag compare` can be told. No bound at all means bitwise."""

    max_abs: Bound | None = None
    max_rel: Bound | None = None
    cosine_min: Annotated[float, Field(ge=-1, le=1)] | None = None
    max_ulp: Annotated[int, Field(ge=0)] | None = None
    cross_device: bool = False
    arbiter: bool = True
    noise: Text | None = None
    band_from: Text | None = None
    k: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    step: Integers | None = None
    rank: Integers | None = None
    stage: Text | None = None
    pair_step: NumberPairs = {}
    pair_rank: NumberPairs = {}
    pair_stage: NamePairs = {}
    layout: Layout = {}
    baseline_layout: Layout = {}
    candidate_layout: Layout = {}
    replicas: bool = False
    engine: Literal["native", "msprobe"] = "native"
    reference: bool | None = None  # on a terminal only
    format: Literal["table", "json"] = "table"
    map: Text | None = None
    include: Texts = ()
    exclude: Texts = ()
    phase: Literal["forward", "backward", "parameters_grad"] | None = None
    limit: Annotated[int, Field(ge=1)] = 1000  # DESIGN: symptoms listed in the JSON
    workers: Annotated[int, Field(ge=1)] | None = None  # as many as there are processors
    scheduler: Text | None = None
    first: bool = False
    cache: bool = True


class NanSettings(Section):
    """Hold what `precdiag nan` can be told."""

    step: Integers | None = None
    rank: Integers | None = None
    stage: Text | None = None
    log: Text | None = None
    pattern: Text | None = None
    format: Literal["table", "json"] = "table"
    limit: Annotated[int, Field(ge=1)] = 1000


class SideSettings(Section):
    """Hold what one side of `precdiag collect` runs; env stands on top of the environment, and only here."""

    command: Text | None = None
    cwd: Text | None = None
    env: dict[str, str] = {}


class CollectSettings(Section):
    """Hold what `precdiag collect` can be told."""

    out: Text = "precdiag-run"
    baseline: SideSettings = SideSettings()
    candidate: SideSettings = SideSettings()
    step: Window = "0"
    rank: Integers = ()
    level: Literal["L0", "L1", "mix"] = "L1"
    task: Literal["statistics", "tensor"] = "statistics"
    summary: Literal["statistics", "md5", "xor"] = "statistics"
    scope: Texts = ()
    list: Texts = ()
    step_at: Literal["auto", "optimizer", "call", "manual"] = "auto"
    model: Text | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    deterministic: bool = False
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_bytes: Annotated[int, Field(gt=0)] | None = None
    update_stats: bool = False
    parallel: bool = False
    quiet: bool = False
    format: Literal["table", "json"] = "table"


class Thresholds(Section):
    """Hold from where on a training curve is called faulty. Shares are of the curve's own level.

    Spike and plateau: chosen on simulated curves (tests/test_shape.py holds the rates of false alarms and misses
    they give). Baseline: `max_relative` is the usual 1 % rule for migrated training; `mean_*` and `accept_steps`
    are the project's acceptance rule; `first_*` and `norm_relative` are those of MindSpore Transformers' "Large
    Model Migration Precision Standard".
    """

    spike_sigmas: Bound = 10.0  # height over what was to be expected, in robust standard deviations of the noise
    spike_share: Bound = 0.15  # least height of a spike
    spike_dips: Bound = 3.0  # times a spike is higher than the deepest dip: noise with long tails goes both ways
    flat_share: Bound = 0.01  # a curve is flat if it certainly falls by less than this from end to end
    flat_points: Count = 30  # fewest points that can show it
    constant_points: Count = 10  # points in a row with the same digits that are no accident
    zero_fall: Bound = 0.01  # loss whose fall to 0.0 is no convergence: 100 times what Trainer's four digits resolve
    max_relative: Bound = 0.01
    accept_steps: Count = 1000
    mean_absolute_error: Bound = 0.02
    mean_relative_error: Bound = 0.02
    first_absolute: Bound = 0.005
    first_relative: Bound = 0.005
    norm_relative: Bound = 0.10


class LocalizeSettings(Thresholds):
    """Hold what `precdiag localize` can be told, thresholds first."""

    series: Text = "loss"
    pattern: Text | None = None
    step_offset: int | None = None
    cross_device: bool | None = None
    out: Text = "precdiag-localize"
    float32: Text | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_bytes: Annotated[int, Field(gt=0)] | None = None
    format: Literal["table", "json"] = "table"


class Settings(Section):
    """Hold every section of precdiag.yaml."""

    compare: CompareSettings = CompareSettings()
    collect: CollectSettings = CollectSettings()
    localize: LocalizeSettings = LocalizeSettings()
    nan: NanSettings = NanSettings()


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
            f"{tree.origin(path)}: unknown key {_quoted(key)}, the nearest valid key is {near}",
            hint=f"valid keys here: {', '.join(siblings)}",
        )
    # pydantic: "Input should be a valid number, unable to parse string as a number", "Value error, <ours>"
    expected = first["msg"].removeprefix("Value error, ").partition(", unable")[0]
    expected = re.sub(r"^\w+ should (be|have)", "expected", expected)
    raise UsageError(f"{tree.origin(path)}: {key} is {_quoted(first['input'])}: {expected}")


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
            raise UsageError(f"{variable}: unknown variable (set to {_quoted(text)}), the nearest is {near}")
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
    return [node for node in nodes if all(other[:-1] != node for other in nodes)]


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
            raise UsageError(f"{file}:{line}: {_quoted(key.value)} is given twice")
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


def _parse_range(item: str) -> range:
    """Parse `5` or `5-7`."""
    # 18 digits fit every integer there is use for, and keep int() linear
    match = re.fullmatch(r"([0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?", item)
    if match is None:
        raise UsageError(f"expected integers from 0 and ranges such as 0,5-7, found {_quoted(item)}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UsageError(f"the range {item} runs backwards, expected {last}-{first}")
    return range(first, last + 1)


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= QUOTED_LENGTH else text[:QUOTED_LENGTH] + "…"
