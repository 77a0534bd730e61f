"""The loss-log formats people post: how a line of each is recognised, and what step and values it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

NUMBER = r"[-+]?(?:nan|inf(?:inity)?|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"

WRAPPED = rf"([\w.]+\()?({NUMBER})(?(2)[^)]*\))"
"""A number as Python prints it, bare, `np.float64(0.1)` or `tensor(0.1, device='npu:0')`; stands after one group."""

STEP_KEYS = ("step", "global_step", "_step", "trainer/global_step", "train/global_step", "current_steps",
             "global_step/max_steps", "iteration", "iter")  # fmt: skip
"""Where a row of csv or JSON says its step; the first that is there counts."""

LAST_STEP = 1 << 62
"""A larger "step" is a timestamp or garbage, and would not fit an int64."""

_BOOKKEEPING = frozenset(
    ["time", "timing", "eta", "elapsed", "runtime", "seconds", "ms", "speed", "throughput", "tps", "tflop", "tflops",
     "flop", "flops", "flos", "mfu", "perf", "memory", "mem", "gb", "gib", "mib", "samples", "tokens", "seqlen",
     "batch", "percentage", "epoch", "steps", "iter", "iteration", "wall"]
)  # fmt: skip

_COUNTS = ("global_step", " vs samples")  # verl; Megatron-LM's second copy of each curve in TensorBoard


class Record(NamedTuple):
    """One logged row. `step` is None where the format has none: such rows are counted."""

    step: int | None
    values: dict[str, float]
    epoch: int | None = None


@dataclass(frozen=True)
class LineFormat:
    """A format whose rows are lines of text.

    `cue` is a text without which there is no such row, quick to look for; `sniff` finds what only such rows have.
    `loss_vanishes`: a loss that is not above 0.0 (NaN is not) is left out of its row (Megatron-LM, training_log:
    `if avg > 0.0`).
    """

    name: str
    cue: str
    sniff: re.Pattern[str]
    parse: Callable[[str], Iterator[Record]]
    loss_vanishes: bool = False


@lru_cache(maxsize=4096)
def is_series(name: str) -> bool:
    """Tell a training curve from clocks, counters and memory, which are not kept."""
    lowered = name.lower()
    if not name or lowered in STEP_KEYS or lowered.endswith(_COUNTS):
        return False
    if "loss" in lowered or "norm" in lowered:
        return True
    return _BOOKKEEPING.isdisjoint(re.split(r"[^a-z]+", lowered))


def number(value: object) -> float | None:
    """Read a cell or a JSON value: NaN and Inf are numbers; an empty cell, null, true and text are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def step_number(value: object) -> int | None:
    """Read a step: `12`, `12.0`, or ms-swift's `32/94`. None for anything else."""
    parsed = number(value.partition("/")[0] if isinstance(value, str) else value)
    if parsed is None or not abs(parsed) < LAST_STEP or not parsed.is_integer():
        return None
    return int(parsed)


def mapping_record(row: Mapping[str, Any]) -> Record | None:
    """Turn a row with named columns (JSON object, csv row) into a record; None when no column is a series."""
    key = next((key for key in STEP_KEYS if row.get(key) is not None), None)
    step = step_number(row[key]) if key else None
    prefix = "val/" if row.get("mode") == "val" else ""  # mmcv's .log.json says it so
    values = {prefix + k: v for k, raw in row.items() if is_series(k) and (v := number(raw)) is not None}
    if not values or (key and step is None):
        return None
    return Record(step, values, step_number(row.get("epoch")))


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _rows(head: str, fields: str, step: Callable[[re.Match[str], str], int | None]) -> Any:
    """Build a line parser: a row goes from one `head` to the next, and holds what `fields` finds in it.

    Rows of several ranks, and a row that a killed process left unfinished, may share a line.
    """
    heads, pairs = _regex(head), _regex(fields)

    def parse(line: str) -> Iterator[Record]:
        starts = list(heads.finditer(line))
        for start, end in zip(starts, [*(each.start() for each in starts[1:]), len(line)], strict=True):
            body = line[start.end() : end]
            values = {name: float(value) for raw, *_, value in pairs.findall(body) if is_series(name := raw.strip())}
            yield Record(step(start, body), values)

    return parse


def _first_group(head: re.Match[str], _: str) -> int:
    return int(head[1])


def _mm_step(head: re.Match[str], _: str) -> int:
    """mmengine numbers the iterations of each epoch from 1: (epoch - 1) * iterations per epoch + i."""
    epoch, i, per_epoch, iteration = head.groups()
    return int(iteration) if iteration else (int(epoch) - 1) * int(per_epoch) + int(i)


_IN_DICT_STEP = _regex(r"""["'](?:global_)?step(?:/max_steps)?["']\s*:\s*["']?(\d+)""")


def _dict_step(_: re.Match[str], body: str) -> int | None:
    found = _IN_DICT_STEP.search(body)
    return int(found[1]) if found else None


def _json_line(line: str) -> Iterator[Record]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return
    record = mapping_record(row) if isinstance(row, dict) else None
    if record:
        yield record


_PIPES = _rows(r"iteration\s+(\d+)/\s*\d+\s*\|", rf"([^|:]+):\s*({NUMBER})\s*(?=\||$)", _first_group)
_DICT = _rows(r"\{(?=[\"'])", rf"""["']([^"':]+)["']\s*:\s*["']?{WRAPPED}["']?\s*(?=[,}}])""", _dict_step)

LINE_FORMATS = (
    LineFormat(
        "mindspeed-llm-fsdp2", "iteration", _regex(r">>\s+iteration\s+\d+/\s*\d+\s*\|"), _PIPES, loss_vanishes=True
    ),
    LineFormat(
        "mindspeed-mm", "iteration", _regex(r"iteration\s+\d+/\s*\d+\s*\|.*\|\s*loss:"), _PIPES, loss_vanishes=True
    ),
    LineFormat("megatron", "iteration", _regex(r"iteration\s+\d+/\s*\d+\s*\|"), _PIPES, loss_vanishes=True),
    LineFormat("llamafactory-jsonl", "current_steps", _regex(r'^\s*\{.*"current_steps"\s*:'), _json_line),
    LineFormat("ms-swift", "max_steps", _regex(r'^\s*\{.*"global_step/max_steps"\s*:'), _json_line),
    LineFormat("jsonl", '"', _regex(r'^\s*\{\s*"(?:.*")?[^"]*(?:loss|norm)[^"]*"\s*:'), _json_line),
    LineFormat("ms-swift", "max_steps", _regex(r"\{.*'global_step/max_steps'\s*:"), _DICT),
    LineFormat("hf-stdout", "loss'", _regex(r"\{(?:'.*)?'(?:\w+_)?loss'\s*:"), _DICT),
    LineFormat(
        "verl",
        "step:",
        _regex(rf"\bstep:\d+ - \S+:(?:[\w.]+\()?{NUMBER}"),
        _rows(r"\bstep:(\d+) - ", rf"([^\s:][^\s]*):{WRAPPED}(?= - |\s*$)", _first_group),
    ),
    LineFormat(
        "torchtitan",
        "step:",
        _regex(rf"\bstep:\s*\d+\s+loss:\s*{NUMBER}"),
        _rows(r"\bstep:\s*(\d+)\s", rf"([a-z]\w*):\s*({NUMBER})(?=\s|$)", _first_group),
    ),
    LineFormat(
        "mmengine",
        "loss",
        _regex(r"\b(?:Epoch|Iter)(?:\(train\))?\s+\[[^a-z]*\].*\bloss:"),
        _rows(
            r"\b(?:Epoch(?:\(train\))?\s+\[\s*(\d+)\]\[\s*(\d+)/\s*(\d+)\]|Iter(?:\(train\))?\s+\[\s*(\d+)/)",
            rf"([a-z][\w./]*):\s*({NUMBER})(?=[,\s]|$)",
            _mm_step,
        ),
    ),
)

DEEPSPEED = LineFormat(
    "deepspeed",
    "skipped=",
    _regex(r"\[Rank \d+\]\s+step=\d+,\s*skipped=\d+"),
    _rows(r"\[Rank \d+\]\s+step=(\d+),", rf"(\w+)=\[?({NUMBER})(?=[,\]\s]|$)", _first_group),
)
"""Other formats' logs hold these lines too: it names a log only when nothing else does."""
