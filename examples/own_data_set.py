"""A data set of one's own in one file: tumours measured at several clinics, whose instruments read differently.

fedkin compare --data own_data_set:load --clients 6 --methods separate,fedavg,fedamp        (in this folder)
python own_data_set.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedkin


def load(clients: int | None = None, seed: int = 0) -> fedkin.Federation:
    """The 569 tumours of the Wisconsin study (Wolberg et al., UCI; with scikit-learn), dealt to clinics.

    A function of a data set is given those of fedkin's data settings that it takes by name, and returns a Federation;
    or a `fedkin.data.source.Source`, a pool of samples that fedkin's own splits deal out.
    """
    raw = load_breast_cancer()
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(len(raw.target)), clients or 6)
    frame = {name: raw.data[:, i].astype(float) for i, name in enumerate(raw.feature_names)}
    clinic = np.empty(len(raw.target), dtype=object)
    for number, rows in enumerate(parts):
        clinic[rows] = f"clinic-{number}"
        for values in frame.values():
            values[rows] *= rng.uniform(0.8, 1.25)  # each clinic's instruments have a scale of their own
    table = {"clinic": clinic, "diagnosis": raw.target_names[raw.target], **frame}
    # With `statistics="own"` every clinic scales its measurements by itself, and the instruments no longer matter.
    return fedkin.Federation.from_table(
        table, client="clinic", target="diagnosis", statistics="own", seed=seed, name="tumours"
    )


if __name__ == "__main__":
    results = fedkin.compare(
        methods=["separate", "fedavg", "fedamp"],
        federation=load(),
        rounds=10,
        local={"epochs": 5, "batch_size": 16},
        out="runs/own-data-set",
    )
    for row in results.rows():
        print(f"{row.name:20} {row.score:.1%}")
