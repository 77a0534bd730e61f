"""What every command can be told: one section of precdiag.yaml each, its keys, their types and defaults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from precdiag.errors import UsageError

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
    try:
        return parse_integers(",".join(_items(given)))
    except UsageError as error:
        raise ValueError(str(error)) from error


def _window(given: object) -> str:
    """Accept steps as above, or `iter:` and the log's own numbers; return them as one text."""
    text = ",".join(_items(given))
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
    pairs: dict[int, int] = {}
    for item in _items(given):
        left, equals, right = item.partition("=")
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
    pairs: dict[str, str] = {}
    for item in _items(given):
        left, equals, right = (each.strip() for each in item.partition("="))
        if not (left and equals and right):
            raise ValueError("expected BASELINE=CANDIDATE, as in actor=actor_rollout")
        _put_pairs(pairs, [(left, right)])
    return pairs


def _sizes(given: object) -> object:
    """Accept `tp=2,pp=4`, a list of such texts, or a mapping."""
    if isinstance(given, Mapping):
        return dict(given)
    pairs = [tuple(each.strip() for each in item.partition("=")) for item in _items(given)]
    if not all(name and size for name, _, size in pairs):
        raise ValueError("expected sizes by name, as in tp=2,pp=4,vpp=2")
    return {name: size for name, _, size in pairs}


def _items(given: object) -> list[str]:
    """The texts of a list, or between the commas of one text."""
    return [str(item) for item in given] if isinstance(given, list | tuple) else str(given).split(",")


def _put_pairs(pairs: dict[Any, Any], more: Iterable[tuple[Any, Any]]) -> None:
    for baseline, candidate in more:
        if baseline in pairs or candidate in pairs.values():
            raise ValueError(f"{baseline}={candidate}: one of the two is paired already")
        pairs[baseline] = candidate


def _one_to_one(pairs: dict[Any, Any]) -> dict[Any, Any]:
    if len(set(pairs.values())) < len(pairs):
        raise ValueError("one of the candidate's is paired twice")
    return pairs


Level = Literal["L0", "L1", "mix"]
Task = Literal["statistics", "tensor"]
Summary = Literal["statistics", "md5", "xor"]
StepAt = Literal["auto", "optimizer", "call", "manual"]

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
    cache: bool = True


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
    level: Level = "L1"
    task: Task = "statistics"
    summary: Summary = "statistics"
    scope: Texts = ()
    list: Texts = ()
    step_at: StepAt = "auto"
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


def quoted(value: object) -> str:
    """Show a value as in an error: on one line of a terminal."""
    text = repr(value)
    return text if len(text) <= QUOTED_LENGTH else text[:QUOTED_LENGTH] + "…"


def _parse_range(item: str) -> range:
    """Parse `5` or `5-7`."""
    # 18 digits fit every integer there is use for, and keep int() linear
    match = re.fullmatch(r"([0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?", item)
    if match is None:
        raise UsageError(f"expected integers from 0 and ranges such as 0,5-7, found {quoted(item)}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UsageError(f"the range {item} runs backwards, expected {last}-{first}")
    return range(first, last + 1)
