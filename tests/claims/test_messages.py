"""What methods send: claims of papers about communication."""

from __future__ import annotations

from pathlib import Path

import fedkin


def test_panacea_sends_no_more_than_fedavg(tmp_path: Path) -> None:
    """One model down and one up for each client, in every round; the hypernetwork and the embeddings stay at home."""
    sent = {}
    for method in ("fedavg", "panacea"):
        run = fedkin.run(method=method, data={"name": "digits", "split": "practical"}, rounds=2, out=tmp_path / method)
        sent[method] = [(line["bytes_down"], line["bytes_up"]) for line in run.rounds]
    assert sent["panacea"] == sent["fedavg"]
    assert sent["fedavg"][0] == (384_800, 384_800), "src/fedkin/papers/claims.toml says so"
