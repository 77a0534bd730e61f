"""Join the dumps of a model's pipeline stages into one, in which layers have the numbers of the whole model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from precdiag.dump import Dump, begin_order
from precdiag.errors import UnreadableError
from precdiag.layout import Part
from precdiag.rows import OUTPUT, UPDATE_SCOPES

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# What stands before a layer's number in the path of a module: Megatron's layers, and the names of other models.
_LAYER = re.compile(r"(?P<stack>(?:.*\.)?(?:layers|blocks|block|h))\.(?P<number>\d+)(?=\.|\Z)(?P<rest>.*)")
_CHUNK = re.compile(r"(?P<chunk>\d+)\.(?P<rest>.+)")
_LAST = 1 << 30


@dataclass(frozen=True)
class _Stage:
    """One stage's calls under construction, and its dump; `calls` has chunk (of a virtual pipeline) and block."""

    number: int
    dump: Dump
    calls: pd.DataFrame


def join_stages(dumps: Sequence[Dump], part: Part, chunks: int = 1, *, modules_only: bool = False) -> Dump:
    """Join the dumps of one model's pipeline stages, in the order of the stages.

    Layers are renumbered over the whole model: chunk by chunk, within a chunk stage by stage, which is how Megatron
    deals them out; the numbers that msprobe gives to chunks go. API calls are counted on from stage to stage. Work is
    ordered as one process would do it: microbatch by microbatch, forward through the stages, backward the other way. A
    module that several stages hold (a container) takes in what the first one did and gives out what the last one did.
    Distributed calls are left out, for they are how the model is split; `modules_only` leaves out all API calls. Two
    more columns of `calls` say which rank holds a call (holder) and what it is called there (old). Raises
    UnreadableError where stages cannot be told apart for want of module names.
    """
    import pandas as pd

    staged = [_Stage(number, dump, _blocks(dump, chunks)) for number, dump in enumerate(dumps)]
    if (len(dumps) > 1 or chunks > 1) and not any((dump.calls["module"] != "").any() for dump in dumps):
        raise UnreadableError(
            f"{part.label}: the dumps of pipeline stages name no modules, so their calls cannot be put in order",
            hint="collect at level L0 or mix",
        )
    before = _layers_before(staged)
    calls = pd.concat([_renamed(stage, staged, before) for stage in staged], ignore_index=True)
    rows = _rows(staged)
    left_out = (calls["kind"] == "Distributed") | (modules_only & (calls["module"] == ""))
    order = _order(calls, len(dumps))
    merged, rows = _merged(calls, rows, order[~left_out.to_numpy()[order]])
    stacks = {
        new: frames
        for stage, new, old in zip(calls["stage"], calls["name"], calls["old"], strict=True)
        if (frames := dumps[stage].stack(old))
    }
    return replace(
        dumps[0],
        part=part,
        rows=rows,
        calls=merged,
        notes=(
            *(note for dump in dumps for note in dump.notes),
            *_notes(dumps, int(left_out.sum()), modules_only),
        ),
        _stacks=stacks or {"": ()},
    )


def _notes(dumps: Sequence[Dump], left_out: int, modules_only: bool) -> list[str]:
    notes = []
    if len(dumps) > 1:
        ranks = ", ".join(str(dump.part.rank) for dump in dumps)
        notes.append(f"the pipeline stages of ranks {ranks} are joined: layers have the whole model's numbers")
    if left_out:
        what = "API calls, communication included," if modules_only else "communication calls"
        notes.append(f"{left_out} {what} are left out: the two sides split the model differently")
    return notes


def _blocks(dump: Dump, chunks: int) -> pd.DataFrame:
    """Say of each call which microbatch it works on, in which direction, and in which chunk: columns of `calls`.

    A module's counter is its microbatch; what is called within it, or beside it in the same run of forward or backward
    calls, belongs to the same.
    """
    import numpy as np
    import pandas as pd

    calls = dump.calls.copy()
    matches = [_CHUNK.match(path) if chunks > 1 else None for path in calls["module"]]
    calls["chunk"] = [int(match["chunk"]) if match else 0 for match in matches]
    calls["path"] = [match["rest"] if match else path for match, path in zip(matches, calls["module"], strict=True)]
    named = (calls["module"] != "").to_numpy()
    backward = (calls["phase"] != "forward").to_numpy()
    batch = np.where(named, np.maximum(calls["index"].to_numpy(), 0), -1)
    chunk = np.where(named, calls["chunk"].to_numpy(), -1)
    parents = calls["parent"].tolist()
    for at in range(len(calls) - 1, -1, -1):  # parents stand behind their children
        owner = parents[at]
        if batch[at] < 0 and owner >= 0:
            batch[at], chunk[at] = batch[owner], chunk[owner]
    run = np.cumsum(np.diff(backward, prepend=backward[:1]) != 0)
    known = pd.DataFrame({"batch": np.where(batch >= 0, batch, np.nan), "chunk": np.where(batch >= 0, chunk, np.nan)})
    within = known.groupby(run).bfill()
    within = within.groupby(run).ffill()
    filled = within.ffill().fillna(0).astype(np.int64)
    last = calls["scope"].isin(UPDATE_SCOPES).to_numpy()
    trailing = within["batch"].isna().to_numpy() & (run == (run[-1] if len(run) else 0)) & ~backward
    calls["batch"] = np.where(last | trailing, _LAST, filled["batch"])
    calls["chunk"] = filled["chunk"]
    calls["backward"] = backward
    return calls


def _renamed(stage: _Stage, stages: Sequence[_Stage], before: Mapping[tuple[str, int, int], int]) -> pd.DataFrame:
    """Return a stage's calls under the names of the whole model; column old keeps their own."""
    calls = stage.calls.copy()
    module = [
        _whole_path(path, before, int(chunk), stage.number)
        for path, chunk in zip(calls["path"], calls["chunk"], strict=True)
    ]
    counted: dict[str, int] = {}
    for earlier in stages[: stage.number]:
        api = earlier.calls[earlier.calls["module"] == ""]
        highest = api.groupby(api["kind"] + "." + api["operation"])["index"].max()
        for operation, index in highest.items():
            counted[str(operation)] = counted.get(str(operation), 0) + int(index) + 1
    calls["old"] = calls["name"]
    columns = ["name", "module", "kind", "operation", "index", "phase"]
    entries: Iterable[tuple[Any, ...]] = calls[columns].itertuples(index=False, name=None)
    calls["name"] = [_whole_name(*entry, new=new, counted=counted) for entry, new in zip(entries, module, strict=True)]
    shift = (calls["kind"] + "." + calls["operation"]).map(counted).fillna(0).astype("int64")
    calls["index"] = calls["index"].where((calls["module"] != "") | (calls["index"] < 0), calls["index"] + shift)
    calls["module"] = module
    calls["stage"] = stage.number
    calls["holder"] = stage.dump.part.rank or 0
    return calls


def _layers_before(stages: Sequence[_Stage]) -> dict[tuple[str, int, int], int]:
    """Count the layers that stand before each chunk of each stage: (stack, chunk, stage) to a number."""
    held: dict[tuple[str, int, int], int] = {}
    for stage in stages:
        for path, chunk in zip(stage.calls["path"], stage.calls["chunk"], strict=True):
            if match := _LAYER.match(path):
                key = (match["stack"], int(chunk), stage.number)
                held[key] = max(held.get(key, 0), int(match["number"]) + 1)
    return {
        (stack, chunk, stage): sum(n for (s, c, t), n in held.items() if s == stack and (c, t) < (chunk, stage))
        for stack, chunk, stage in held
    }


def _whole_path(path: str, before: Mapping[tuple[str, int, int], int], chunk: int, stage: int) -> str:
    match = _LAYER.match(path)
    if match is None:
        return path
    number = int(match["number"]) + before[match["stack"], chunk, stage]
    return f"{match['stack']}.{number}{match['rest']}"


def _whole_name(
    name: str, old: str, kind: str, operation: str, index: int, phase: str, *, new: str, counted: Mapping[str, int]
) -> str:
    if old:
        return name.replace(f"{kind}.{old}.", f"{kind}.{new}.", 1)
    subject = f"{kind}.{operation}"
    if index < 0 or subject not in counted:
        return name
    return f"{subject}.{index + counted[subject]}.{phase}"


def _rows(stages: Sequence[_Stage]) -> pd.DataFrame:
    """Put the stages' rows together; column at is the position of their call among all stages' calls."""
    import pandas as pd

    frames = []
    start = 0
    for stage in stages:
        rows = stage.dump.rows.copy()
        rows["at"] = rows["call"].cat.codes.astype("int64") + start
        paths = [stage.dump.tensor_path(row) if name is not None else None for row, name in enumerate(rows["file"])]
        rows["file"] = pd.Series([None if path is None else str(path.resolve()) for path in paths], dtype=object)
        rows["stage"] = stage.number
        for column in ("slot", "type", "dtype", "shape", "call"):
            rows[column] = rows[column].astype(object)
        frames.append(rows)
        start += len(stage.calls)
    return pd.concat(frames, ignore_index=True)


def _order(calls: pd.DataFrame, count: int) -> np.ndarray:
    """Return the positions of all stages' calls in the order in which one process would finish them."""
    import numpy as np

    through = calls["chunk"].to_numpy() * count + calls["stage"].to_numpy()
    backward = calls["backward"].to_numpy()
    held = np.where(backward, -through, through)
    return np.lexsort((np.arange(len(calls)), held, backward, calls["batch"].to_numpy()))


def _merged(calls: pd.DataFrame, rows: pd.DataFrame, order: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Arrange calls in this order, those of one name made one: its inputs from the first, its outputs from the last."""
    import numpy as np
    import pandas as pd

    chosen = calls.iloc[order]
    name = chosen["name"].to_numpy()
    last = ~pd.Series(name).duplicated(keep="last").to_numpy()
    merged = chosen[last].reset_index(drop=True)
    position = pd.Series(np.arange(len(merged)), index=merged["name"])
    starts = calls.groupby("stage")["stage"].transform(lambda stage: stage.index[0]).to_numpy()
    owner = np.where(calls["parent"] >= 0, calls["parent"] + starts, -1)
    owner_name = np.where(owner >= 0, calls["name"].to_numpy()[owner], "")
    parent = pd.Series(owner_name[order][last]).map(position).fillna(-1).astype("int64").to_numpy()
    merged["parent"] = np.where(parent > np.arange(len(merged)), parent, -1)
    place = np.full(len(calls), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    rows = rows[place[rows["at"]] >= 0]
    at = rows["at"].to_numpy()
    instance = pd.Series(name).groupby(name).cumcount().to_numpy()[place[at]]
    final = last[place[at]]
    keep = np.where(rows["io"] == OUTPUT, final, instance == 0)
    rows = rows[keep]
    at = at[keep]
    code = position.loc[name[place[at]]].to_numpy()
    arranged = np.lexsort((np.arange(len(rows)), rows["io"].to_numpy(), code))
    rows = rows.iloc[arranged].reset_index(drop=True)
    names = pd.CategoricalDtype(pd.Index(merged["name"], dtype=object))
    rows["call"] = pd.Categorical.from_codes(code[arranged], dtype=names)
    for column in ("slot", "type", "dtype", "shape"):
        rows[column] = rows[column].astype("category")
    rows["order"] = begin_order(rows, merged["parent"].to_numpy(dtype=np.int64))
    return merged.drop(columns=["path", "batch", "backward", "chunk", "stage"]), rows.drop(columns=["at", "stage"])
