"""Coarse to fine: collect the window, find the step, go into the module, take the tensors around the cause."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from precdiag.campaign import Plan, Stage, StageError, Stages, check_same, read_plan
from precdiag.collection import SIDES, SideCommand
from precdiag.collection import Side as SideName
from precdiag.culprit import Culprit, Progress, Seen, dumped_steps, inspect
from precdiag.dump import read_dump
from precdiag.errors import UsageError
from precdiag.finding import Row
from precdiag.launch import split_words
from precdiag.layout import open_run
from precdiag.localize import EXIT, Curves, Localization, conclude, look, of_run, read_both
from precdiag.nextstep import at_window, coarsest, known_commands, spread, tensors_around
from precdiag.rows import CHECKSUM_CRC
from precdiag.session import Request, request_of
from precdiag.settings import CollectSettings, Level, LocalizeSettings
from precdiag.sides import Given, Side, Sides, find_sides

ALONE = "with one side alone only a NaN can be traced further: give the baseline's command, or its dump"

LOST = "the difference does not come again when these calls are collected: a run does not repeat the one before it"


def search(
    given: Given,
    settings: LocalizeSettings,
    collecting: CollectSettings,
    progress: Progress,
    *,
    go_on: Path | None = None,
) -> Localization:
    """Run a search in `settings.out`, or go on with the one in `go_on`.

    Raises UsageError where another search is there, StageError where the first stage left no curves to judge.
    """
    split_words(settings.float32 or "")  # before hours of runs
    folder = go_on or Path(settings.out)
    if go_on is None:
        beginning = plan(given, settings.cross_device, collecting)
        check_same(folder, beginning)
    else:
        beginning = read_plan(folder)
    deadline = None if settings.timeout is None else time.monotonic() + settings.timeout
    stages = Stages(folder, beginning, settings.max_bytes, deadline, collecting.parallel)
    paths = Given(**{name: Path(text) for name, text in beginning.given.items()})
    sides = find_sides(paths, cross_device=beginning.cross_device, needs_log=False)
    return Search(stages, sides, settings, progress).run()


def plan(given: Given, cross_device: bool | None, collecting: CollectSettings) -> Plan:
    """Settle what a search starts from.

    Raises UsageError where no side's command is known.
    """
    sides = find_sides(given, cross_device=cross_device, needs_log=False)
    known, _ = known_commands(sides, collecting)
    commands: dict[SideName, SideCommand] = {side: command for side, command in known.items() if command is not None}
    if not commands:
        raise UsageError(
            "--run: nothing says what to run",
            hint="collect: {baseline: {command: …}, candidate: {command: …}} in precdiag.yaml, or a collection's DIR",
        )
    paths = {name: str(path.absolute()) for name, path in vars(given).items() if path}
    alone = sides.baseline is None and "baseline" not in commands
    return Plan(paths, commands, ("candidate",) if alone else SIDES, request_of(collecting), cross_device)


@dataclass
class Search:
    """One search: what it runs in, what was given, and what has been found so far."""

    stages: Stages
    sides: Sides
    settings: LocalizeSettings
    progress: Progress = lambda label, done, total: None
    curves: Curves | None = None
    seen: Seen = field(default_factory=Seen)
    words: tuple[str, ...] = ()

    def run(self) -> Localization:
        """Go on until one call is named or a stage stops; what was found so far is concluded either way."""
        following: tuple[str, ...] = ()
        notes: tuple[str, ...] = ()
        try:
            self._look_at_curves()
            self._find_step()
            self._repeat_in_float32()
            self._refine()
        except StageError as stopped:
            if self.curves is None:
                raise
            following, notes = stopped.commands, (str(stopped),)
        assert self.curves is not None
        found = conclude(self.sides, self.curves, self.seen)
        ran = tuple((stage.name, stage.why) for stage in self.stages.done)
        return replace(found, next=following, notes=(*found.notes, *notes), stages=ran)

    def _look_at_curves(self) -> None:
        """Judge the logs that are there, else run both sides once for them; with it goes the first step's dump."""
        if self.sides.candidate.log is None:
            request = replace(self._coarsest(), steps=(0,), iterations=())
            self._collect(replace(self._stage("curves", request, "the curves, and the first step's dump"), whole=True))
        self.curves = read_both(self.sides, self.settings)
        self.seen = look(self.sides, self.curves, self.progress)

    def _find_step(self) -> None:
        """Collect the window that the curves name, then narrow down where an earlier step left the difference."""
        assert self.curves is not None
        clean = self.seen.clean
        if self.seen.culprit is None:
            verdict = self.curves.found.verdict
            if verdict in EXIT:
                return
            if verdict != "nan" and not self._has_baseline():
                self.seen = replace(self.seen, notes=(*self.seen.notes, ALONE))
                return
            if self.curves.dump_steps:
                request = at_window(self._coarsest(), self.curves, self.sides.cross_device)
                self._see(self._stage("window", request, f"the steps that the curves name: {self.curves.choice.why}"))
            elif self.curves.found.step is not None:
                self._bracket(max(clean, default=-1), self.curves.mapping.dump_step(self.curves.found.step))
                return
        culprit = self.seen.culprit
        if culprit is not None and self.seen.carried and culprit.row.step:
            before = [step for step in (*clean, *self.seen.clean) if step < culprit.row.step]
            self._bracket(max(before, default=-1), culprit.row.step)

    def _bracket(self, low: int, high: int) -> None:
        """Close in on the first step that differs, after `low`, which does not, and not after `high`, which does."""
        if self.sides.cross_device:  # after the first update everything differs by rounding
            low = max(low, high - 2)
        while high - low > 1:
            steps = spread(low, high)
            level: Level = "L0" if len(steps) < high - low - 1 else "mix"
            request = replace(self._coarsest(), steps=steps, iterations=(), level=level)
            found = self._look_into(Stage("narrow", request, f"step {high} differs already: the steps before it"))
            if found.culprit is not None and found.culprit.row.step is not None:
                high = found.culprit.row.step
            low = max([low, *(step for step in found.clean if step < high)])
            if found.culprit is None and not found.clean:
                return
        steps = tuple(step for step in (low, high) if step >= 0)
        request = replace(self._coarsest(), steps=steps, iterations=())
        self._see(Stage("step", request, f"the first step that differs is {high}: every call of it and the one before"))

    def _repeat_in_float32(self) -> None:
        """Where two devices differ by no more than rounding, look again at the same steps with finer rounding."""
        comparison = self.seen.comparison
        if self.seen.culprit is not None or comparison is None or comparison.cause is None:
            return
        if self.settings.float32 is None or self.sides.cross_device is not True:
            return
        self.words = split_words(self.settings.float32)
        request = replace(self._coarsest(), steps=dumped_steps(self.sides), iterations=())
        before = self.seen
        self._see(Stage("float32", request, "nothing beyond rounding: the same steps in float32"))
        self.seen = replace(self.seen, notes=(*before.notes, f"run with {self.settings.float32}", *self.seen.notes))

    def _refine(self) -> None:
        """Go into the module where only modules were seen, then to the tensors of the calls around the culprit."""
        culprit = self.seen.culprit
        if culprit is None or culprit.row.step is None:
            return
        if self._only_modules() and culprit.row.call.startswith(("Module.", "Cell.")):
            request = replace(
                self._coarsest(), steps=(culprit.row.step,), iterations=(), level="mix", list=(culprit.row.call,)
            )
            inner = self._look_into(Stage("module", request, f"every call inside {culprit.row.call}"))
            if inner.culprit is not None and inner.culprit.row.call != culprit.row.call:
                self.seen = culprit_inside(self.seen, inner)
        finer = tensors_around(self.seen, self.stages.plan.base)
        if finer is None or self.seen.culprit is None:
            return
        found = self._look_into(Stage("tensor", finer, f"the tensors around {self.seen.culprit.row.call}"))
        self.seen = proven(self.seen, found)

    def _see(self, stage: Stage) -> None:
        self.seen = self._look_into(stage)

    def _look_into(self, stage: Stage) -> Seen:
        self._collect(stage)
        nan = self.curves is not None and self.curves.found.verdict == "nan"
        return inspect(self.sides, dumped_steps(self.sides), nan=nan, progress=self.progress)

    def _collect(self, stage: Stage) -> None:
        """Run a stage and let its dumps stand for the sides; the logs that were judged stay the ones before it."""
        found = self.stages.collected(replace(stage, words=self.words))
        baseline = found.get("baseline")
        cross = self.stages.plan.cross_device
        if cross is None and baseline is not None and baseline.device and found["candidate"].device:
            cross = baseline.device != found["candidate"].device
        self.sides = Sides(
            _rerun(self.sides.candidate, found["candidate"]),
            self.sides.baseline if baseline is None else _rerun(self.sides.baseline or Side(), baseline),
            cross,
        )
        if self.curves is not None:
            self.curves = of_run(self.curves, self.sides, self.settings)

    def _coarsest(self) -> Request:
        known = replace(self.sides, baseline=self.sides.baseline or Side()) if self._has_baseline() else self.sides
        return coarsest(known, self.stages.plan.base)

    def _has_baseline(self) -> bool:
        return "baseline" in self.stages.plan.wanted or self.sides.baseline is not None

    def _stage(self, name: str, request: Request, why: str) -> Stage:
        """Name a first stage; where the baseline was dumped elsewhere, the candidate alone, as that dump was made."""
        side = self.sides.baseline
        if "baseline" in self.stages.plan.commands or side is None or side.dump is None or self.stages.done:
            return Stage(name, request, why)
        return Stage(name, _like(side.dump, request), f"{why}, as {side.dump} was dumped", ("candidate",))

    def _only_modules(self) -> bool:
        dump = self.sides.candidate.dump
        return dump is not None and read_dump(open_run(dump).parts[0]).level == "L0"


def _like(dump: Path, request: Request) -> Request:
    """Ask for what a dump holds."""
    run = open_run(dump)
    first = read_dump(run.parts[0])
    checksums = bool((first.rows["checksum_kind"] == CHECKSUM_CRC).any())
    levels: dict[str, Level] = {"L0": "L0", "L1": "L1", "mix": "mix"}
    return replace(
        request,
        steps=tuple(sorted({part.step or 0 for part in run.parts})),
        iterations=(),
        level=levels.get(first.level, "mix"),
        task="tensor" if first.task == "tensor" else "statistics",
        summary="md5" if checksums else "statistics",
    )


def culprit_inside(outer: Seen, inner: Seen) -> Seen:
    """Put what was found inside the module at the end of the chain; what was equal before it stays known."""
    return replace(inner, clean=outer.clean, missing=outer.missing, carried=outer.carried)


def proven(seen: Seen, tensors: Seen) -> Seen:
    """Add the tensors' numbers to the culprit; where they do not show it, say that the run does not repeat itself."""
    culprit = seen.culprit
    if culprit is None or tensors.comparison is None:
        return seen
    comparison = tensors.comparison
    cause = [] if comparison.cause is None else [comparison.cause.row]
    rows = [*cause, *comparison.around, *comparison.symptoms]
    same = next((row for row in rows if _is_row(row, culprit.row)), None)
    if same is None or same.metrics is None:
        return replace(seen, notes=(*seen.notes, LOST))
    row = replace(culprit.row, metrics=same.metrics, evidence=same.evidence)
    return replace(seen, culprit=_with_row(culprit, row))


def _with_row(culprit: Culprit, row: Row) -> Culprit:
    return replace(culprit, row=row, found=replace(culprit.found, row=row))


def _is_row(row: Row, wanted: Row) -> bool:
    return (row.step, row.rank, row.name) == (wanted.step, wanted.rank, wanted.name) and row.kind != "equal"


def _rerun(before: Side, again: Side) -> Side:
    """Let a new run's dump stand for a side; its log is a re-run's where an earlier one was judged."""
    log = before.log or again.log
    return replace(again, log=log, run_log=again.log if before.log is not None else None, command=before.command)
