"""What a comparison comes to: of one pair of parts, and of the whole."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from precdiag.alignment import Alignment
from precdiag.batches import Given
from precdiag.cause import Cause
from precdiag.communication import Communication
from precdiag.errors import EXIT_CANNOT_LOOK, EXIT_FOUND, EXIT_NOTHING_FOUND
from precdiag.evidence import NOTHING
from precdiag.finding import Row
from precdiag.judge import Policy
from precdiag.layout import Part
from precdiag.parts import Alone
from precdiag.replaced import Replaced
from precdiag.rounding import Rounding

DIVERGED, NO_DIVERGENCE, NOT_COMPARABLE = "diverged", "no-divergence", "not-comparable"


@dataclass(frozen=True)
class Coverage:
    """How many rows were looked at, and what became of them. `compared` = `equal` + `different`."""

    compared: int = 0
    equal: int = 0
    different: int = 0
    unknown: int = 0
    uninitialised: int = 0
    baseline_only: int = 0
    candidate_only: int = 0
    filtered: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Bound:
    """The smallest band that would have held every finite difference; None where no metric is known.

    `scaled` is the largest ‖c-b‖ / ‖b‖ of a row in units of its dtype's roundoff u.
    """

    max_abs: float | None = None
    max_rel: float | None = None
    max_ulp: float | None = None
    scaled: float | None = None


@dataclass(frozen=True)
class PartResult:
    """What one pair of parts came to, without their frames. `error` stands where they could not be read."""

    baseline: Part
    candidate: Part
    coverage: Coverage = field(default_factory=Coverage)
    cause: Cause | None = None
    communications: tuple[Communication, ...] = ()
    first_outside: Row | None = None
    hidden: tuple[Row, ...] = ()
    hidden_count: int = 0
    around: tuple[Row, ...] = ()
    symptoms: tuple[Row, ...] = ()
    symptom_count: int = 0
    blocking: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    evidence: int = NOTHING
    bound: Bound = field(default_factory=Bound)
    has_gradients: bool = False
    alignment: Alignment = field(default_factory=Alignment)
    rounding: Rounding | None = None
    given: Given | None = None
    replaced: tuple[Replaced, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def place(self) -> Part:
        """The part that speaks for both: the baseline's, with the candidate's step and rank where it names none."""
        step = self.baseline.step if self.baseline.step is not None else self.candidate.step
        rank = self.baseline.rank if self.baseline.rank is not None else self.candidate.rank
        return replace(self.baseline, step=step, rank=rank)

    @property
    def at(self) -> tuple[str, int]:
        """The stage and step, for telling which parts precede which."""
        return self.place.at


@dataclass(frozen=True)
class Comparison:
    """The answer of a comparison, and what it rests on. `verdict` follows the policy, `cause` is always bitwise.

    `of_tables`: both paths are msprobe's result tables, not dumps. `reference`: where its Result comes from, or why it
    is blank; None where nobody asked.
    `proposal`: the option that pairs the ranks by the data they were given, where that is why they differ.
    """

    verdict: str
    policy: Policy
    baseline: Path
    candidate: Path
    parts: tuple[PartResult, ...]
    one_sided: tuple[Alone, ...]
    evidence: int
    coverage: Coverage
    cause: Cause | None = None
    first_outside: Row | None = None
    around: tuple[Row, ...] = ()
    symptoms: tuple[Row, ...] = ()
    symptom_count: int = 0
    smallest_band: Bound = field(default_factory=Bound)
    alignment: Alignment = field(default_factory=Alignment)
    rounding: Rounding | None = None
    proposal: str | None = None
    cross_device: bool = False
    notes: tuple[str, ...] = ()
    of_tables: bool = False
    reference: str | None = None

    @property
    def exit_code(self) -> int:
        """0 looked and found nothing, 1 found, 2 could not look."""
        return {NO_DIVERGENCE: EXIT_NOTHING_FOUND, DIVERGED: EXIT_FOUND}.get(self.verdict, EXIT_CANNOT_LOOK)
