"""Heart disease: 920 patients of four hospitals (Janosi, Steinbrunn, Pfisterer and Detrano, UCI, 1989), a silo each.

The silos are `cleveland` (303 rows), `hungary` (294), `switzerland` (123) and `va` (Long Beach, 200). Predicted is
`disease`: whether a vessel is narrowed by more than half (`num` above 0). 1,759 cells are missing, marked `?`; and a
cholesterol or a blood pressure of 0 is missing in truth, as nobody has it: `chol` is 0 in all rows of Switzerland.
"""

from __future__ import annotations

from typing import Any

from .. import cells, from_tables
from .. import table as reading
from ..files import DataError, need

NAMES = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")
HOSPITALS = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "va": "va"}
DEFAULTS: dict[str, Any] = from_tables.DEFAULTS | {
    "table": {
        "client": "hospital",
        "target": "disease",
        "categorical": ["cp", "restecg", "slope", "thal"],
        "missing_in": {"chol": [0], "trestbps": [0]},
    },
}


def table(verify: bool = True) -> reading.Table:
    """All rows: `hospital`, the thirteen columns as they are named at UCI, and `disease`, which is yes or no."""
    files = need("heart", verify)
    rows: dict[str, list[Any]] = {name: [] for name in ("hospital", *NAMES, "disease")}
    for hospital, stem in HOSPITALS.items():
        file = files[f"processed.{stem}.data"]
        for number, line in enumerate(file.read_text(encoding="ascii", errors="replace").split(), 1):
            values = [float("nan") if cell == "?" else cells.number(cell) for cell in line.split(",")]
            *findings, num = values
            if len(findings) != len(NAMES) or None in values or num != num:
                raise DataError(f"{file}, line {number} is not a row of {len(NAMES)} numbers and `num`: {line[:60]!r}.")
            for name, cell in zip(NAMES, findings, strict=True):
                rows[name].append(cell)
            rows["hospital"].append(hospital)
            rows["disease"].append("yes" if num else "no")
    return reading.read(rows, "heart")
