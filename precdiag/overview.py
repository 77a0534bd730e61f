"""Fold what became of every step and rank into the few lines that matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from precdiag.comparison import Comparison, Coverage, PartResult
from precdiag.finding import Row
from precdiag.layout import part_order
from precdiag.parts import Alone

EQUAL, DIFFERENT, UNKNOWN, UNREADABLE = "equal", "different", "unknown", "unreadable"


@dataclass(frozen=True)
class Outcome:
    """What became of one or several ranks at one or several steps of a stage.

    `state`: equal, different, unknown, unreadable, or the side (baseline_only, candidate_only) that alone has the step.
    `first`: the name of the row that differs first there, or the error. `is_cause`: that is the first cause of all, or
    cannot be told to be later. `coverage` is the sum over steps and ranks.
    """

    stage: str
    steps: tuple[int | None, ...]
    ranks: tuple[int | None, ...]
    state: str
    first: str | None = None
    is_cause: bool = False
    coverage: Coverage = field(default_factory=Coverage)


def outcome_of(part: PartResult, causes: Sequence[Row] = ()) -> Outcome:
    """Return the outcome of one step and rank; `causes` are the first cause and what cannot be told to be later."""
    place = part.place
    at = Outcome(place.stage, (place.step,), (place.rank,), EQUAL, coverage=part.coverage)
    if part.error is not None:
        return replace(at, state=UNREADABLE, first=part.error)
    if part.cause is not None:
        return replace(at, state=DIFFERENT, first=part.cause.row.name, is_cause=part.cause.row in causes)
    if part.blocking or not part.coverage.compared:
        return replace(at, state=UNKNOWN)
    return at


def missing(alone: Alone) -> Outcome:
    """Return the outcome of a step and rank that one side alone dumped."""
    return Outcome(alone.part.stage, (alone.part.step,), (alone.part.rank,), f"{alone.side}_only")


def overview(comparison: Comparison) -> tuple[Outcome, ...]:
    """Fold a comparison's steps and ranks, in order: ranks of a step that came to the same are one outcome, and so are
    steps in a row whose outcomes are the same.
    """
    cause = comparison.cause
    causes = () if cause is None else (cause.row, *cause.also)
    each = [(part.place, outcome_of(part, causes)) for part in comparison.parts]
    each += [(alone.part, missing(alone)) for alone in comparison.one_sided]
    each.sort(key=lambda at: part_order(at[0]))
    steps = [
        _folded(outcomes) for _, outcomes in groupby((outcome for _, outcome in each), lambda o: (o.stage, o.steps))
    ]
    return tuple(outcome for _, alike in groupby(steps, _signature) for outcome in _over_steps(list(alike)))


def listed_numbers(numbers: Iterable[int | None]) -> str:
    """Write steps or ranks as the command line takes them: `0,2-255`; `-` for those without a number."""
    known = sorted({number for number in numbers if number is not None})
    runs = [list(run) for _, run in groupby(enumerate(known), lambda at: at[1] - at[0])]
    texts = [f"{run[0][1]}" if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs]
    return ",".join(texts) or "-"


def shown_numbers(numbers: Sequence[int | None], most: int = 26) -> str:
    """Write steps or ranks in about `most` characters: the first of them, and how many there are."""
    text = listed_numbers(numbers)
    if len(text) <= most:
        return text
    return f"{text[: text.rindex(',', 0, most - 8)]},… ({len(numbers)})" if "," in text[: most - 8] else text


def _folded(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Fold the ranks of one step; the first cause stands first, then the order of the ranks."""
    folded: dict[tuple[str, str | None, bool], Outcome] = {}
    for outcome in outcomes:
        key = (outcome.state, outcome.first, outcome.is_cause)
        if (known := folded.get(key)) is not None:
            ranks = (*known.ranks, *outcome.ranks)
            outcome = replace(known, ranks=ranks, coverage=known.coverage + outcome.coverage)
        folded[key] = outcome
    return tuple(sorted(folded.values(), key=lambda outcome: not outcome.is_cause))


def _signature(step: tuple[Outcome, ...]) -> tuple[object, ...]:
    return tuple((o.stage, o.ranks, o.state, o.first, o.is_cause) for o in step)


def _over_steps(alike: list[tuple[Outcome, ...]]) -> Iterable[Outcome]:
    for column in zip(*alike, strict=True):
        steps = tuple(step for outcome in column for step in outcome.steps)
        yield replace(column[0], steps=steps, coverage=sum((o.coverage for o in column), Coverage()))
