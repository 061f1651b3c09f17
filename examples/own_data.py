"""Own data and an own model in Python: four clinics and two ways to diagnose; who should learn from whom?

python own_data.py
"""

from __future__ import annotations

import numpy as np
from torch import nn

import fedkin

# The direction in which each clinic's patients are ill: the north agrees, and the south.
ANGLES = {"north": 0.0, "north-west": 0.1, "south": 3.0, "south-west": 3.1}


def clinic(angle: float, patients: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two measurements a patient, and a diagnosis that depends on them in this clinic's own way."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(patients, 2)).astype(np.float32)
    score = np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1]
    return x, (score + 0.3 * rng.normal(size=patients) > 0).astype(np.int64)


def network(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs[0], 16), nn.Tanh(), nn.Linear(16, outputs))


if __name__ == "__main__":
    clinics = {name: clinic(angle, 40, seed) for seed, (name, angle) in enumerate(ANGLES.items())}
    federation = fedkin.Federation.from_arrays(clinics, name="clinics", test_fraction=0.5)
    results = fedkin.compare(
        methods=["separate", "fedamp"], federation=federation, model=network, rounds=30, out="runs/clinics"
    )
    amp = fedkin.Run("runs/clinics/fedamp-seed0")
    names = amp.summary["clients"]
    for name, weights in zip(names, amp.collaboration(), strict=True):
        print(
            f"{name} listens " + ", ".join(f"{w:.0%} to {o}" for w, o in zip(weights, names, strict=True) if w > 0.01)
        )
    for row in results.rows():
        print(f"{row.name}: {row.score:.0%} on average, {row.worst:.0%} at the worst clinic")
    for row, clients in results.worse_than_alone().items():
        print(f"better off alone than with {row}: {', '.join(name for name, _, _ in clients) or 'nobody'}")
    tensors, about = amp.model("north")
    print(f"north's model: {about['chosen']} of {about['method']}, {sum(t.numel() for t in tensors.values())} numbers")
