"""Which of msprobe's two CRC-32 dialects a dump was written in: they differ on bfloat16."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.rows import CHECKSUM_CRC
from precdiag.statistic import element_counts

if TYPE_CHECKING:
    import pandas as pd

# 1.2.2 and 8.1.2 take the CRC of a bfloat16 tensor after widening it to float32, 8.3.3 and 26.x of its own bytes.
WIDENED, RAW = "widened", "raw"
# A constant tensor's checksum can be computed from its value; larger ones are not worth the time.
_LARGEST_CONSTANT = 1 << 16


def dialect(dump: Dump) -> str | None:
    """Return how the dump's bfloat16 checksums were taken, None where nothing in it tells.

    A constant tensor tells by computing both; else a float32 tensor with the shape, Max and Min of a bfloat16 one
    (the result of `.float()`): equal checksums mean widened, unequal ones raw.
    """
    rows = dump.rows[(dump.rows["checksum_kind"] == CHECKSUM_CRC) & dump.rows["tensor"]]
    rows = rows.assign(elements=element_counts(rows["shape"]))
    bfloat16 = rows[rows["dtype"] == "torch.bfloat16"]
    told = _from_constants(bfloat16)
    if told is not None:
        return told
    float32 = rows[rows["dtype"] == "torch.float32"]
    keys = ["shape", "max", "min"]
    columns = [*keys, "checksum"]
    twins = bfloat16[columns].astype({"shape": object}).merge(float32[columns].astype({"shape": object}), on=keys)
    if twins.empty:
        return None
    return WIDENED if (twins["checksum_x"] == twins["checksum_y"]).any() else RAW


def _from_constants(bfloat16: pd.DataFrame) -> str | None:
    constant = bfloat16[(bfloat16["max"] == bfloat16["min"]) & bfloat16["elements"].between(1, _LARGEST_CONSTANT)]
    for value, elements, checksum in zip(constant["max"], constant["elements"], constant["checksum"], strict=True):
        if value == 0:  # the bytes of zeros are the same either way but for their number; signs are not known
            continue
        wide = struct.pack("<f", value)
        for name, element in ((WIDENED, wide), (RAW, wide[2:])):
            if f"{zlib.crc32(element * elements):08x}" == checksum:
                return name
    return None
