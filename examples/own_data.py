"""Own data and an own model in Python: three clinics with arrays, a small network, a model for each at the end.

python own_data.py
"""

from __future__ import annotations

import numpy as np
from torch import nn

import fedkin


def clinic(angle: float, patients: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two measurements a patient, and a diagnosis that depends on them in this clinic's own way."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(patients, 2)).astype(np.float32)
    score = np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1]
    return x, (score + 0.3 * rng.normal(size=patients) > 0).astype(np.int64)


def network(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs[0], 16), nn.Tanh(), nn.Linear(16, outputs))


if __name__ == "__main__":
    clinics = {"north": clinic(0.0, 60, 1), "south": clinic(0.2, 40, 2), "east": clinic(3.0, 50, 3)}
    federation = fedkin.Federation.from_arrays(clinics, name="clinics")
    done = fedkin.run(federation=federation, model=network, method="fedamp", rounds=15, out="runs/clinics")
    xi = done.collaboration()
    for name, weights in zip(done.summary["clients"], xi, strict=True):
        listens = ", ".join(f"{w:.0%} to {other}" for w, other in zip(weights, done.summary["clients"], strict=True))
        print(f"{name} listens {listens}")
    tensors, about = done.model("north")
    print(f"north's model: {about['chosen']} of {about['method']}, {sum(t.numel() for t in tensors.values())} numbers")
