"""Choose the steps and ranks of two runs, and pair them by stage, step and rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from precdiag.errors import UnreadableError, UsageError
from precdiag.layout import Part, Run, part_order


@dataclass(frozen=True)
class Selection:
    """Which steps, ranks and stages to look at; None means all."""

    steps: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    stage: str | None = None

    def admits(self, part: Part) -> bool:
        """Tell whether a part is asked for. A stage is given whole or by its last name."""
        in_stage = self.stage is None or self.stage in (part.stage, part.stage.rpartition("/")[2])
        in_step = self.steps is None or part.step in self.steps
        return in_stage and in_step and (self.ranks is None or (part.rank or 0) in self.ranks)


@dataclass(frozen=True)
class Alone:
    """A part that only one side (`baseline`, `candidate`) has."""

    part: Part
    side: str

    def __str__(self) -> str:
        return f"{self.part.label} is only in the {self.side}"


def selected(run: Run, selection: Selection | None) -> Run:
    """Return the run with only the parts asked for. Raises UsageError where none of them is in it."""
    if selection is None:
        return run
    parts = tuple(part for part in run.parts if selection.admits(part))
    if not parts:
        there = listed(dict.fromkeys(part.label for part in run.parts))
        raise UsageError(f"{run.path}: none of the steps and ranks asked for is in it", hint=f"it holds {there}")
    return replace(run, parts=parts)


def pair_parts(baseline: Run, candidate: Run) -> tuple[list[tuple[Part, Part]], tuple[Alone, ...], tuple[str, ...]]:
    """Pair the parts of two runs by stage, step and rank: pairs in order, what has no partner, notes.

    A single process (`proc{PID}`, `rank`) pairs with the only other one of its step. Where each side is one step that
    the user named, their numbers need not agree. Raises UnreadableError where two processes claim one place, or
    nothing is in common.
    """
    notes: list[str] = []
    left, right = list(baseline.parts), list(candidate.parts)
    steps = {p.step for p in left}, {p.step for p in right}
    if len(steps[0]) == len(steps[1]) == 1 and steps[0] != steps[1] and (baseline.one_step or candidate.one_step):
        notes.append(f"{left[0].label} of the baseline is compared with {right[0].label} of the candidate, as named")
        right = [Part(p.folder, left[0].stage if len(right) == 1 else p.stage, left[0].step, p.rank) for p in right]
    elif len(left) == len(right) == 1 and left[0].step == right[0].step:
        right = [Part(right[0].folder, left[0].stage, right[0].step, right[0].rank)]
    places = _by_place(left), _by_place(right)
    pairs: list[tuple[Part, Part]] = []
    alone: list[Alone] = []
    for place in dict.fromkeys((*places[0], *places[1])):
        here, there = places[0].get(place, {}), places[1].get(place, {})
        if len(here) == len(there) == 1:
            pairs.append((*here.values(), *there.values()))  # type: ignore[arg-type]
            continue
        pairs += [(here[rank], there[rank]) for rank in here if rank in there]
        alone += [Alone(part, "baseline") for rank, part in here.items() if rank not in there]
        alone += [Alone(part, "candidate") for rank, part in there.items() if rank not in here]
    if not pairs:
        raise UnreadableError(
            f"{baseline.path} and {candidate.path} have no step and rank in common: {listed(map(str, alone), 6)}",
            hint="name the two step folders to compare them all the same",
        )
    return sorted(pairs, key=lambda two: part_order(two[0])), tuple(alone), tuple(notes)


def listed(labels: Iterable[str], most: int = 4) -> str:
    """Join labels for a message, the first few of them."""
    labels = list(labels)
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more


def _by_place(parts: list[Part]) -> dict[tuple[str, int | None], dict[int | None, Part]]:
    places: dict[tuple[str, int | None], dict[int | None, Part]] = {}
    for part in parts:
        ranks = places.setdefault((part.stage, part.step), {})
        if part.rank in ranks:
            raise UnreadableError(
                f"{ranks[part.rank].folder} and {part.folder} are both {part.label}: two processes dumped it",
                hint="name one of the two folders",
            )
        ranks[part.rank] = part
    return places
