"""Draw what rounding explains between two devices and what it does not: the block above the first cause."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from precdiag.arbiter import BOTH, NEITHER, Ruling
from precdiag.comparison import Bound, Comparison
from precdiag.evidence import BYTES
from precdiag.finding import Row
from precdiag.growth import Jump, Level
from precdiag.relative import HALF
from precdiag.report_blocks import labelled, plain_table, section, tensor_command
from precdiag.rounding import Beyond, Rounding

# How many lines the profile has at most, and how wide its longest bar is.
PROFILE_LINES, BAR = 24, 16
ROWS_NAMED = 3

_LAYER = re.compile(r"(.*?\.?\b\d+)(?:\.|\Z)")
_NAMES = {2.0**-8: "bf16", 2.0**-11: "fp16", 2.0**-24: "fp32", 2.0**-53: "fp64"}
_OFF = {BOTH: "both off", NEITHER: "both fine"}


def rounding_block(comparison: Comparison, rounding: Rounding) -> list[RenderableType]:
    """Draw the headline block of a comparison across devices."""
    beyond = rounding.beyond
    title = "BEYOND ROUNDING" if beyond is not None else f"nothing beyond rounding at {name_of(rounding.u)}"
    blocks: list[RenderableType] = [labelled(title, _fields(comparison, rounding))]
    levels = [level for level in _layers(rounding.profile) if level.e > 0]
    if levels:
        blocks.append(section("error by layer, relative to the baseline", _profile(levels, rounding.beyond)))
    if rounding.jumps:
        blocks.append(section("largest jumps", _jumps(rounding.jumps)))
    return blocks


def rounding_next(comparison: Comparison) -> list[str]:
    """Return what to type next where rounding is in question; nothing where it is not."""
    rounding = comparison.rounding
    if rounding is None or (rounding.onset is None and not comparison.cross_device):
        return []
    both = f"{comparison.baseline} {comparison.candidate}"
    if not comparison.cross_device:
        return [f"if the sides ran on two devices: precdiag compare {both} --cross-device"]
    row = rounding.beyond.row if rounding.beyond is not None else None
    if row is None:
        return [_in_single(rounding)] if rounding.u >= HALF else []
    if comparison.evidence >= BYTES:
        return [f"precdiag compare {both} --repro DIR"] if row.kind == "introduced" else []
    return [tensor_command(row)]


def smallest_band_text(bound: Bound) -> list[str]:
    """Say in one line which band would have held every finite difference; nothing where nothing differs."""
    named = ((bound.max_abs, "max abs {:.3g}"), (bound.max_rel, "max rel {:.3g}"), (bound.scaled, "{:.3g} u a row"))
    said = [text.format(value) for value, text in named if value]
    return [f"all finite differences lie within {', '.join(said)}"] if said else []


def name_of(u: float) -> str:
    """Name the dtype of a roundoff, as people write it: bf16, fp16, fp32."""
    return _NAMES.get(u, "this precision")


def in_units(e: float, u: float) -> str:
    """Write a relative error in units of u."""
    return f"{e / u:.3g} u" if math.isfinite(e) else "not comparable" if math.isnan(e) else "inf"


def _fields(comparison: Comparison, rounding: Rounding) -> list[tuple[str, str]]:
    fields = [("equal", _equal(rounding))]
    fields += _named("random", rounding.random, "other numbers are drawn: align the generators or set p = 0")
    fields += _named("routing", rounding.routing, "near ties chosen the other way: experts not comparable beyond here")
    if rounding.onset is not None:
        fields.append(("onset", f"{rounding.onset.name}: differs by rounding, no fault by itself"))
    if rounding.beyond is None:
        fields += _nothing(rounding)
    else:
        fields += _beyond(rounding.beyond)
    fields += _named("arguments", rounding.arguments, "called with other arguments")
    if rounding.tf32:
        looks = "looks like TF32 or HF32 on one side: switch it off (allow_tf32, allow_hf32) and compare again"
        fields += _named("precision", rounding.tf32, looks)
    return fields


def _beyond(beyond: Beyond) -> list[tuple[str, str]]:
    row, u = beyond.row, beyond.u
    where = ", ".join(f"{name} {at}" for name, at in (("step", row.step), ("rank", row.rank)) if at is not None)
    fields = [("row", row.name), ("kind", row.kind)]
    fields += [("where", where)] if where else []
    fields += [("module", row.module)] if row.module else []
    grown = "" if row.kind == "parameter" else f"{in_units(beyond.e_in, u)} in → "
    fields += [("error", f"{grown}{in_units(beyond.e_out, u)}, u = {_power(u)} ({name_of(u)})")]
    fields += [("basis", beyond.basis), ("why", beyond.why)]
    if beyond.ruling is not None:
        fields.append(("float64", _ruling(beyond.ruling, u)))
    if beyond.source is not None:
        fields.append(("source", str(beyond.source)))
    return [*fields, ("do", beyond.next_step)]


def _nothing(rounding: Rounding) -> list[tuple[str, str]]:
    """Say what was not found, and how far that goes: never a pass."""
    name = name_of(rounding.u)
    if rounding.unresolved is not None:
        row = rounding.unresolved
        said = f"the error jumps at {row.name} or before it: statistics at {name} do not tell where it comes in"
        return [
            ("finding", said),
            ("do", f"precdiag collect --task tensor --level mix --step {row.step or 0} --out DIR …"),
        ]
    if rounding.lost is not None:
        said = f"no row stands out, but at {rounding.lost.name} the error is larger than rounding adds up to"
        return [("finding", f"{said}: it came in by small steps, or where the two sides make other calls")]
    if rounding.random:
        return [("finding", "behind random draws nothing but parameters can be told from rounding")]
    if rounding.u >= HALF:
        said = f"every row is within what rounding explains at {name}; smaller faults cannot be seen"
        return [("finding", f"{said}: repeat the step in fp32"), ("do", _in_single(rounding))]
    return [("finding", f"every row is within what rounding explains at {name}")]


def _in_single(rounding: Rounding) -> str:
    step = 0 if rounding.onset is None or rounding.onset.step is None else rounding.onset.step
    return (
        f"with the model in float32 on both sides: precdiag collect --task tensor --level mix --step {step} --out DIR …"
        "; precdiag compare DIR --cross-device"
    )


def _equal(rounding: Rounding) -> str:
    parameters, integers = rounding.parameters, rounding.integers
    said = [f"parameters {parameters[0]} of {parameters[1]}"] if parameters[1] else ["no parameters were dumped"]
    if integers[1]:
        said.append(f"integer inputs (tokens, labels, masks) {integers[0]} of {integers[1]}")
    return ", ".join(said)


def _named(name: str, rows: Sequence[Row], meaning: str) -> list[tuple[str, str]]:
    if not rows:
        return []
    more = f" and {len(rows) - ROWS_NAMED} more" if len(rows) > ROWS_NAMED else ""
    return [(name, f"{', '.join(row.name for row in rows[:ROWS_NAMED])}{more}: {meaning}")]


def _layers(profile: Sequence[Level]) -> list[Level]:
    """Keep the module that closes each layer (`layers.3`) and what stands outside all layers."""
    found: dict[tuple[str, str], Level] = {}
    for level in profile:
        path = _layer_of(level.path)
        own = found.get((path, level.phase))
        e = level.e if own is None or level.path == path else max(level.e, own.e)
        found[path, level.phase] = Level(path, level.phase, e)
    return list(found.values())


def _layer_of(path: str) -> str:
    match = _LAYER.match(path)
    return path if match is None else match[1]


def _profile(levels: Sequence[Level], beyond: Beyond | None) -> Table:
    table = plain_table("module", "phase", "error", "", "", right=("error",), wide="module")
    lowest = min(math.log2(level.e) for level in levels)
    span = max(math.log2(level.e) for level in levels) - lowest
    marked = ("", "") if beyond is None else (_layer_of(beyond.row.module or beyond.row.call), beyond.row.phase)
    for level in _thinned(levels, marked):
        length = 1 + round((BAR - 1) * (math.log2(level.e) - lowest) / span) if span else 1
        mark = "jump" if (level.path, level.phase) == marked else ""
        table.add_row(level.path, level.phase, f"{level.e:.2g}", "▪" * length, Text(mark, "bold"))
    return table


def _thinned(levels: Sequence[Level], marked: tuple[str, str]) -> list[Level]:
    """Leave out levels evenly where they are too many, never the marked one and the one before it."""
    if len(levels) <= PROFILE_LINES:
        return list(levels)
    kept = {round(at * (len(levels) - 1) / (PROFILE_LINES - 3)) for at in range(PROFILE_LINES - 2)}
    kept |= {at for at, level in enumerate(levels) if (level.path, level.phase) == marked}
    kept |= {at for at, level in enumerate(levels[1:]) if (level.path, level.phase) == marked}
    return [levels[at] for at in sorted(kept)]


def _jumps(jumps: Sequence[Jump]) -> Table:
    table = plain_table("row", "in", "out", "times", "float64", right=("in", "out", "times"), wide="row")
    for jump in jumps:
        off = "" if jump.ruling is None else _OFF.get(jump.ruling.off, f"{jump.ruling.off} off")
        numbers = (in_units(jump.e_in, jump.u), in_units(jump.e_out, jump.u), f"{jump.times:.3g}")
        table.add_row(jump.row.name, *numbers, off)
    return table


def _ruling(ruling: Ruling, u: float) -> str:
    """Both sides' own errors against a replay in float64."""
    own = f"baseline {in_units(ruling.baseline, u)}, candidate {in_units(ruling.candidate, u)} off its own replay"
    return f"{own}: {_OFF.get(ruling.off, f'{ruling.off} off')}"


def _power(u: float) -> str:
    return f"2^{round(math.log2(u))}" if math.isfinite(u) else "-"
