"""Result tables written by hand in msprobe's formats: csv as any version writes them, xlsx without a library."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

BASIC = ("NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape")
TENSOR = ("Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio")
DIFFERENCES = ("Max diff", "Min diff", "Mean diff", "L2norm diff")
RATIOS = ("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr")
SIDES = tuple(f"{side} {name}" for side in ("NPU", "Bench") for name in ("max", "min", "mean", "l2norm"))

Cell = str | float | bool
Line = Mapping[str, Cell]


def line(name: str, npu: Sequence[Cell] = (1.0, -1.0, 0.0, 2.0), bench: Sequence[Cell] = (), **more: Cell) -> Line:
    """One row as 26.x prints it with equal metrics; `more` names other cells with _ for blanks."""
    cells: dict[str, Cell] = {"NPU Name": name, "Bench Name": name}
    cells |= {key: "torch.float32" if "Dtype" in key else "[2, 4]" for key in BASIC[2:]}
    cells |= dict(zip(SIDES, (*npu, *(bench or npu)), strict=True))
    return cells | {key.replace("_", " "): value for key, value in more.items()}


def tensors(name: str, metrics: Sequence[Cell] = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0), **more: Cell) -> Line:
    """One row of a tensor table."""
    return {**line(name), **dict(zip(TENSOR, metrics, strict=True)), "Result": "pass", **more}


def statistics(name: str, npu: Sequence[float] = (1.0, -1.0, 0.0, 2.0), bench: Sequence[float] = ()) -> Line:
    """One row of a statistics table, its differences as 26.x prints them."""
    bench = bench or npu
    deltas = [n - b for n, b in zip(npu, bench, strict=True)]
    ratios = ["0" if not d else f"{abs(d / b) * 100}%" if b else "inf" for d, b in zip(deltas, bench, strict=True)]
    cells: dict[str, Cell] = {**line(name, npu, bench), "Result": "pass"}
    return cells | dict(zip((*DIFFERENCES, *RATIOS), (*deltas, *ratios), strict=True))


def write_csv(path: Path, lines: Sequence[Line], *, encoding: str = "utf-8", delimiter: str = ",") -> Path:
    """Write a csv and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding=encoding, newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(lines)
    return path


def write_xlsx(path: Path, sheets: Mapping[str, Sequence[Line]]) -> Path:
    """Write an xlsx with numbers as numbers, flags as flags and texts as texts, and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    type_of = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        parts = "".join(
            f'<Override PartName="/xl/worksheets/sheet{at}.xml" ContentType="{type_of}.worksheet+xml"/>'
            for at in range(len(sheets))
        )
        book.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="rels" ContentType="application/vnd.openxml'
            f'formats-package.relationships+xml"/><Override PartName="/xl/workbook.xml" ContentType="{type_of}.sheet'
            f'.main+xml"/>{parts}</Types>',
        )
        link = f'<Relationship Id="r{{}}" Type="{office}/{{}}" Target="{{}}"/>'
        relations = f'<Relationships xmlns="{package}/relationships">{{}}</Relationships>'
        book.writestr("_rels/.rels", relations.format(link.format(0, "officeDocument", "xl/workbook.xml")))
        inner = [link.format(at, "worksheet", f"worksheets/sheet{at}.xml") for at in range(len(sheets))]
        book.writestr("xl/_rels/workbook.xml.rels", relations.format("".join(inner)))
        names = [f'<sheet name="{name}" sheetId="{at + 1}" r:id="r{at}"/>' for at, name in enumerate(sheets)]
        book.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>{"".join(names)}</sheets></workbook>',
        )
        for at, lines in enumerate(sheets.values()):
            rows = [list(lines[0]), *(list(each.values()) for each in lines)]
            xml = "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
            book.writestr(
                f"xl/worksheets/sheet{at}.xml", f'<worksheet xmlns="{main}"><sheetData>{xml}</sheetData></worksheet>'
            )
    return path


def _cell(value: Cell) -> str:
    if isinstance(value, bool):
        return f'<c t="b"><v>{int(value)}</v></c>'
    if isinstance(value, float | int):
        return f"<c><v>{value!r}</v></c>"
    return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'
