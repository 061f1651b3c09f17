"""A model of one's own: a small residual network with LayerNorm, for samples of any shape.

fedkin run --model own_model:Residual --model.settings.width 48 --data digits        (in this folder)
python own_model.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import fedkin


class Residual(nn.Module):
    """Any module will do that turns (b, *inputs) into (b, outputs). `inputs` and `outputs` come from the data, further
    arguments are settings. Layers that vmap can stack are trained for all clients at once, others one client at a time.
    """

    def __init__(self, inputs: tuple[int, ...], outputs: int, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(math.prod(inputs), width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(blocks))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.flatten(1))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x)


if __name__ == "__main__":
    results = fedkin.compare(
        methods=["separate", "fedamp"],
        data={"name": "digits", "split": "relabelled"},
        model=Residual,
        rounds=10,
        # Attention may look at the head alone; layers go by their names in the module.
        settings={"similarity": "head"},
        out="runs/own-model",
    )
    for row in results.rows():
        print(f"{row.name:20} {row.score:.1%}")
