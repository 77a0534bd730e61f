"""Choose the steps and ranks of two runs, and pair them by stage, step and rank, or as the user says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from precdiag.errors import UnreadableError, UsageError
from precdiag.layout import Part, Run, part_order

T = TypeVar("T", int, str)
_Places = dict[tuple[str, int | None], dict[int | None, Part]]


@dataclass(frozen=True)
class Partners:
    """Which steps, ranks and stages stand against each other by hand: baseline to candidate.

    What is not named keeps its own number or name, and stands alone where that is taken. A stage is given whole or by
    its last name.
    """

    steps: Mapping[int, int] = field(default_factory=dict)
    ranks: Mapping[int, int] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)

    def place_of(self, part: Part) -> Part | None:
        """Return a part of the candidate with the baseline's names for where it stands, None where it stands alone."""
        step = None if part.step is None else _standing(self.steps, part.step)
        rank = None if part.rank is None else _standing(self.ranks, part.rank)
        stage = _standing_stage(self.stages, part.stage)
        taken = (step is None) != (part.step is None) or (rank is None) != (part.rank is None)
        return None if taken or stage is None else replace(part, stage=stage, step=step, rank=rank)

    def require(self, baseline: Run, candidate: Run) -> None:
        """Raise UsageError where a step, rank or stage that is named by hand is not there."""
        for what, pairs in (("step", self.steps), ("rank", self.ranks)):
            for run, numbers in ((baseline, pairs.keys()), (candidate, pairs.values())):
                there = {getattr(part, what) for part in run.parts}
                if lacking := sorted(set(numbers) - there):
                    known = listed(str(number) for number in sorted(n for n in there if n is not None))
                    hint = f"it holds {what} {known}" if known else f"its folders name no {what}"
                    raise UsageError(f"--pair-{what}: {run.path} holds no {what} {lacking[0]}", hint=hint)
        for run, names in ((baseline, self.stages.keys()), (candidate, self.stages.values())):
            stages = {part.stage for part in run.parts}
            if lacking_stages := [name for name in names if not any(_is_stage(name, stage) for stage in stages)]:
                raise UsageError(
                    f"--pair-stage: {run.path} holds no stage {lacking_stages[0]}",
                    hint=f"it holds {listed(sorted(stages))}" if any(stages) else "it holds no stages",
                )


@dataclass(frozen=True)
class Selection:
    """Which steps, ranks and stages of the baseline to look at, None means all; and what stands against them."""

    steps: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    stage: str | None = None
    partners: Partners = field(default_factory=Partners)

    def admits(self, part: Part | None) -> bool:
        """Tell whether a part, named as the baseline does, is asked for. A stage is given whole or by its last name."""
        if part is None:
            return self.steps is None and self.ranks is None and self.stage is None
        in_stage = self.stage is None or _is_stage(self.stage, part.stage)
        in_step = self.steps is None or part.step in self.steps
        return in_stage and in_step and (self.ranks is None or (part.rank or 0) in self.ranks)


@dataclass(frozen=True)
class Alone:
    """A part that only one side (`baseline`, `candidate`) has."""

    part: Part
    side: str

    def __str__(self) -> str:
        return f"{self.part.label} is only in the {self.side}"


def selected(run: Run, selection: Selection | None, named: Callable[[Part], Part | None] = lambda part: part) -> Run:
    """Return the run with only the parts asked for. Raises UsageError where none of them is in it.

    `named` gives a part the names that the selection means.
    """
    if selection is None:
        return run
    parts = tuple(part for part in run.parts if selection.admits(named(part)))
    if not parts:
        there = listed(dict.fromkeys(part.label for part in run.parts))
        raise UsageError(f"{run.path}: none of the steps and ranks asked for is in it", hint=f"it holds {there}")
    return replace(run, parts=parts)


def pair_parts(
    baseline: Run, candidate: Run, partners: Partners | None = None
) -> tuple[list[tuple[Part, Part]], tuple[Alone, ...], tuple[str, ...]]:
    """Pair the parts of two runs by stage, step and rank: pairs in order, what has no partner, notes.

    A single process (`proc{PID}`, `rank`) pairs with the only other one of its step. Where each side is one step that
    the user named, their numbers need not agree. Raises UnreadableError where two processes claim one place, or
    nothing is in common.
    """
    partners = partners or Partners()
    notes: list[str] = []
    left, right = list(baseline.parts), list(candidate.parts)
    steps = {p.step for p in left}, {p.step for p in right}
    named = not partners.steps and (baseline.one_step or candidate.one_step)
    if named and len(steps[0]) == len(steps[1]) == 1 and steps[0] != steps[1]:
        notes.append(f"{left[0].label} of the baseline is compared with {right[0].label} of the candidate, as named")
        right = [replace(p, stage=left[0].stage if len(right) == 1 else p.stage, step=left[0].step) for p in right]
    elif len(left) == len(right) == 1 and left[0].step == right[0].step and not partners.stages:
        right = [replace(right[0], stage=left[0].stage)]
    notes += _said(partners)
    if partners.ranks:
        peers = tuple((theirs, ours) for ours, theirs in partners.ranks.items())
        left = [replace(part, peers=tuple((ours, ours) for ours in partners.ranks)) for part in left]
        right = [replace(part, peers=peers) for part in right]
    placed = [(partners.place_of(part), part) for part in right]
    places = _by_place([(part, part) for part in left]), _by_place([(p, part) for p, part in placed if p is not None])
    pairs: list[tuple[Part, Part]] = []
    alone = [Alone(part, "candidate") for place, part in placed if place is None]
    for place in dict.fromkeys((*places[0], *places[1])):
        here, there = places[0].get(place, {}), places[1].get(place, {})
        if len(here) == len(there) == 1 and not partners.ranks:
            pairs.append((*here.values(), *there.values()))  # type: ignore[arg-type]
            continue
        pairs += [(here[rank], there[rank]) for rank in here if rank in there]
        alone += [Alone(part, "baseline") for rank, part in here.items() if rank not in there]
        alone += [Alone(part, "candidate") for rank, part in there.items() if rank not in here]
    if not pairs:
        raise UnreadableError(
            f"{baseline.path} and {candidate.path} have no step and rank in common: {listed(map(str, alone), 6)}",
            hint="name the two step folders, or say what belongs together with --pair-step and --pair-rank",
        )
    return sorted(pairs, key=lambda two: part_order(two[0])), tuple(alone), tuple(notes)


def listed(labels: Iterable[str], most: int = 4) -> str:
    """Join labels for a message, the first few of them."""
    labels = list(labels)
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more


def _standing(pairs: Mapping[T, T], own: T) -> T | None:
    """Return what the baseline calls the candidate's `own`: as paired, else the same unless that is taken."""
    back = {candidate: baseline for baseline, candidate in pairs.items()}
    return back.get(own, None if own in pairs else own)


def _standing_stage(pairs: Mapping[str, str], own: str) -> str | None:
    """As above; a pair that names last names replaces the last name only."""
    above, slash, last = own.rpartition("/")
    if own in pairs.values() or own in pairs:
        return _standing(pairs, own)
    standing = _standing(pairs, last)
    return None if standing is None else f"{above}{slash}{standing}"


def _is_stage(name: str, stage: str) -> bool:
    return name in (stage, stage.rpartition("/")[2])


def _said(partners: Partners) -> list[str]:
    """Say in a note what is paired by hand."""
    notes = []
    for what, pairs in (("steps", partners.steps), ("ranks", partners.ranks), ("stages", partners.stages)):
        apart = [f"{b}={c}" for b, c in pairs.items() if b != c]
        if apart:
            notes.append(f"{what} are paired by hand, baseline=candidate: {listed(apart, 8)}")
    return notes


def _by_place(parts: list[tuple[Part, Part]]) -> _Places:
    """Arrange parts, each given with the part whose names say where it stands."""
    places: _Places = {}
    for at, part in parts:
        ranks = places.setdefault((at.stage, at.step), {})
        if at.rank in ranks:
            raise UnreadableError(
                f"{ranks[at.rank].folder} and {part.folder} are both {part.label}: two processes dumped it",
                hint="name one of the two folders",
            )
        ranks[at.rank] = part
    return places
