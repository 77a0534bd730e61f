"""Judge what one side's collection left: which attempt counts, every step of every rank, and why it is not whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precdiag.receipts import Receipt, Step, judge_files, read_receipts, steps_of, wanted
from precdiag.session import ATTEMPTS, DUMP, INJECT, read_settings

# Said where nothing loaded the hook; INJECTION.md lists the same causes.
NOT_STARTED = (
    "nothing started: no Python process below the command loaded the hook (python -I, -E or -S, env -i, ssh, srun "
    "without export, docker, a long-lived parent such as Ray's, a script that sets PYTHONPATH itself, or another "
    "tool's sitecustomize before ours)"
)
RAY = "Ray's workers do not inherit the driver's environment: give them both variables in runtime_env's env_vars"


@dataclass(frozen=True)
class Proof:
    """What one side's collection proves. `reason` is None where every step of every rank is complete."""

    dump: Path
    steps: tuple[Step, ...]
    reason: str | None
    hint: str | None
    notes: tuple[str, ...]
    receipts: tuple[Receipt, ...]
    attempt: int = 0

    @property
    def complete(self) -> bool:
        """True where the evidence is whole."""
        return self.reason is None

    @property
    def lead(self) -> Receipt | None:
        """The receipt that speaks for the side: the lowest rank that recorded something."""
        judged = [r for r in self.receipts if "environment" in r]
        return min(judged, key=lambda r: (r["attempt"] != self.attempt, not r["steps"], r["rank"] or 0), default=None)


def prove(folder: Path, launch: str | None = None) -> Proof:
    """Judge the side in `folder` (session.json, receipts/, dump/), or what one `launch` of it left there.

    A step is complete where the process said so and the dump holds as many calls as it said. Of several attempts
    (restarts) the last complete one is judged, or the last. With `launch`, only the ranks that it started are expected.
    """
    settings = read_settings(folder)
    receipts = [r for r in read_receipts(folder) if launch is None or r["launch"] in (launch, None)]
    foreign = next((r["foreign"] for r in receipts if r.get("foreign")), None)
    if foreign is not None and not _conflict(receipts):
        return _prove_foreign(foreign, receipts)
    attempts = sorted({r["attempt"] for r in receipts}) or [0]
    proofs = [_prove_attempt(folder, settings, receipts, attempt, local=launch is not None) for attempt in attempts]
    chosen = next((proof for proof in reversed(proofs) if proof.complete), proofs[-1])
    others = [proof for proof in proofs if proof is not chosen]
    notes = tuple(_said(chosen, others, receipts))
    return Proof(chosen.dump, chosen.steps, chosen.reason, chosen.hint, notes, tuple(receipts), chosen.attempt)


def prove_files(dump: Path, asked: Sequence[int] = ()) -> Proof:
    """Judge a dump that no receipt speaks for by its files alone: the steps in `asked`, or those that are there."""
    steps = judge_files(dump, asked or _steps_in(dump))
    bad = next((step for step in steps if step.state != "complete"), None)
    reason = None
    if bad is not None or not steps:
        reason = f"{dump} holds no step" if bad is None else f"step {bad.step} is {bad.state}: {bad.why or 'no calls'}"
    note = f"{dump} has no receipts: judged by its files alone, a step that was cut short may look whole"
    return Proof(dump, tuple(steps), reason, None, (note,), ())


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Where an attempt's dump lies: attempts/N once it has been set aside or restarted, else dump/."""
    aside = folder / ATTEMPTS / str(attempt)
    return aside if aside.is_dir() else folder / DUMP


def _prove_attempt(
    folder: Path, settings: Mapping[str, Any], receipts: list[Receipt], attempt: int, *, local: bool
) -> Proof:
    # what started before the attempts counted (the launcher) belongs to every one of them
    mine = [r for r in receipts if r["attempt"] == attempt or _is_launcher(r)]
    dump = attempt_folder(folder, attempt)
    takers = _participants(mine, settings["ranks"])
    steps = [step for taker in takers for step in steps_of(taker, settings, dump)]
    if not local:
        steps += _absent_ranks(takers, settings)
    ordered = tuple(sorted(steps, key=lambda s: (s.step is None, s.step or 0, s.rank is not None, s.rank or 0)))
    reason, hint = _reason(ordered, mine, takers, settings, folder)
    return Proof(dump, ordered, reason, hint, (), tuple(mine), attempt)


def _is_launcher(receipt: Receipt) -> bool:
    return receipt["attempt"] == 0 and receipt["rank"] is None and not receipt["steps"]


def _said(chosen: Proof, others: list[Proof], receipts: list[Receipt]) -> Iterator[str]:
    yield from dict.fromkeys(note for r in receipts for note in r["notes"])
    if others:
        yield f"restarted {len(others)} times: attempt {chosen.attempt} is judged"
    for proof in others:
        state = "complete too" if proof.complete else proof.reason
        yield f"attempt {proof.attempt} is kept, not judged: {state}"
    beside = sorted({name for r in receipts for name in r["beside"]})
    if beside:
        yield f"called before the model, not recorded: {', '.join(beside)}"


def _prove_foreign(foreign: Mapping[str, Any], receipts: list[Receipt]) -> Proof:
    dump = Path(foreign.get("dump_path") or "")
    proof = prove_files(dump, foreign.get("step") or ())
    notes = (f"the script's own PrecisionDebugger wrote {dump}", *proof.notes)
    if proof.complete:
        return replace(proof, notes=notes, receipts=tuple(receipts))
    reason = f"the script's own PrecisionDebugger left nothing whole in {dump}: {proof.reason}"
    hint = f"check its config {foreign.get('config_path')}"
    return replace(proof, reason=reason, hint=hint, notes=notes, receipts=tuple(receipts))


def _steps_in(dump: Path) -> list[int]:
    return sorted(int(path.name[4:]) for path in dump.glob("step*") if path.name[4:].isdigit())


def every_step_is_there(folder: Path) -> bool:
    """Tell from receipts alone whether each rank has finished every step asked for and gone on to the next.

    Quick, for a command that still runs; what is there is proven afterwards.
    """
    settings = read_settings(folder)
    takers = _participants(read_receipts(folder), settings["ranks"])
    expected = len(settings["ranks"]) or max((r["world_size"] or 1 for r in takers if r["rank"] is not None), default=1)
    return len(takers) >= expected and all(_has_gone_on(taker, settings) for taker in takers)


def _has_gone_on(receipt: Receipt, settings: Mapping[str, Any]) -> bool:
    complete = {entry["step"] for entry in receipt["steps"] if entry["state"] == "complete"}
    steps = {step for step, _ in wanted(receipt, settings)}
    return bool(steps) and complete >= steps and int(receipt.get("iterations") or 0) > max(complete)


def _participants(receipts: list[Receipt], ranks: list[int]) -> list[Receipt]:
    """The processes whose steps are expected: ranks, or single processes (those that recorded, if any did)."""
    attached = [r for r in receipts if r["state"] in ("attached", "failed", "conflict")]
    ranked = [r for r in attached if r["rank"] is not None]
    if ranked:
        return [r for r in ranked if not ranks or r["rank"] in ranks]
    recording = [r for r in attached if r["steps"]]
    return recording or attached


def _absent_ranks(takers: list[Receipt], settings: Mapping[str, Any]) -> Iterator[Step]:
    """Yield a missing step for each rank that the world has, or was asked for, and that left no receipt."""
    there = {r["rank"] for r in takers}
    world = range(max((r["world_size"] or 1 for r in takers if r["rank"] is not None), default=0))
    if None in there:
        return
    for rank in settings["ranks"] or world:
        if rank not in there:
            for step, iteration in wanted({}, settings):
                yield Step(step, rank, 0, "missing", "this rank left no receipt", iteration)


def _reason(
    steps: tuple[Step, ...],
    receipts: list[Receipt],
    takers: list[Receipt],
    settings: Mapping[str, Any],
    folder: Path,
) -> tuple[str | None, str | None]:
    """Say why the evidence is not whole, and what to do; (None, None) where it is."""
    twice = [rank for rank, n in Counter(r["rank"] for r in takers).items() if n > 1 and rank is not None]
    if twice:
        return (
            f"rank {min(twice)} was recorded by two processes: two launches wrote into one folder",
            "collect each launch into a folder of its own (PRECDIAG_OUT)",
        )
    if steps and all(step.state == "complete" for step in steps) and not _conflict(receipts):
        return None, None
    if not receipts:
        return NOT_STARTED, f"pass on PRECDIAG_SESSION={folder.absolute()} and PYTHONPATH={INJECT}"
    problem = next((r["problem"] for r in receipts if r.get("problem")), None)
    if problem is not None:
        return problem, "install it for that interpreter; precdiag doctor checks this one"
    failed = next((r for r in receipts if r["state"] in ("failed", "conflict")), None)
    if failed is not None:
        return failed.get("error") or failed["notes"][-1], failed.get("error_at")
    if any(r["state"] == "filtered" for r in receipts) and not takers:
        return _filtered(receipts, settings)
    if not takers:
        return _never_attached(receipts)
    return _incomplete(steps, takers)


def _conflict(receipts: list[Receipt]) -> bool:
    return any(r["state"] == "conflict" for r in receipts)


def _filtered(receipts: list[Receipt], settings: Mapping[str, Any]) -> tuple[str, str]:
    ranks = sorted(r["rank"] for r in receipts if r["state"] == "filtered" and r["rank"] is not None)
    asked = ",".join(map(str, settings["ranks"]))
    if not ranks:
        return f"rank filter: a single process has no rank, so --rank {asked} leaves it out", "leave --rank out"
    return f"rank filter: --rank {asked} leaves out every rank there was ({ranks[0]}-{ranks[-1]})", "check --rank"


def _never_attached(receipts: list[Receipt]) -> tuple[str, str | None]:
    if any(r.get("ray") for r in receipts):
        return "started but never attached: the driver of a Ray job trains nothing itself", RAY
    if not any(r["state"] == "torch" for r in receipts):
        return "started but never attached: torch was never imported", f"is this the command that trains? {RAY}"
    return (
        "started but never attached: torch was imported, but no module of an optimizer (or any) was called",
        "is this the command that trains? --step-at call makes every outermost module call a step",
    )


def _incomplete(steps: tuple[Step, ...], takers: list[Receipt]) -> tuple[str, str | None]:
    absent = _absent_nodes(takers)
    if absent is not None:
        return absent, "collect --verify again once its folder is there"
    first = next(step for step in steps if step.state != "complete")
    where = f"step {first.step}" + ("" if first.rank is None else f" of rank {first.rank}")
    if first.state == "unfinished" and not any(r.get("finished") for r in takers if r["rank"] == first.rank):
        return f"killed inside a step: {where} is unfinished ({first.why})", "run it again"
    if first.state == "missing" and not any(r["steps"] for r in takers):
        seen = max((r.get("iterations", 0) for r in takers), default=0)
        evaluations = sum(r["evaluations"] for r in takers)
        also = f" and {evaluations} evaluation passes" if evaluations else ""
        return (
            f"attached but no step reached: {where} was asked for, the run had {seen} iterations{also}",
            "check --step",
        )
    return f"{where} is {first.state}: {first.why}", None


def _absent_nodes(takers: list[Receipt]) -> str | None:
    """Name the nodes of which no rank left a receipt, where launchers count nodes and all ranks are asked for."""
    there = {r["node"] for r in takers} - {None}
    absent = sorted({*range(max((r["nodes"] or 0 for r in takers), default=0))} - there) if there else []
    world, seen = max((r["world_size"] or 0 for r in takers), default=0), {r["rank"] for r in takers}
    ranks = [rank for rank in range(world) if rank not in seen]
    if not absent or not ranks:
        return None
    return f"node {', '.join(map(str, absent))} left nothing: ranks {', '.join(map(str, ranks))} are missing"
