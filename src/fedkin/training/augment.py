"""Training images seen in another place and mirrored: a random crop after padding, and a horizontal flip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Images are padded by `pad` pixels of colour `fill` (a number a channel) on each side, and a piece of the old size
    is cut out at random; with `flip`, half of them are mirrored left to right."""

    pad: int
    flip: bool
    fill: tuple[float, ...]

    def draw(self, shape: Sequence[int], source: torch.Generator) -> Tensor:
        """(*shape, 3) uint8, for each image the row and column of the padded image where the piece begins, and whether
        it is mirrored (0 or 1)."""
        places = 2 * self.pad + 1
        lot = torch.randint(places * places * (1 + self.flip), tuple(shape), generator=source)
        return torch.stack([lot % places, lot // places % places, lot // places**2], -1).to(torch.uint8)

    def __call__(self, x: Tensor, moves: Tensor) -> Tensor:
        """Images x (k, b, C, H, W), moved as drawn, (k, b, 3): all of them in one look-up."""
        *_, channels, height, width = x.shape
        row, column, mirrored = moves.long().unsqueeze(-1).unbind(-2)  # (k, b, 1) each
        h, w = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
        rows = row + h - self.pad  # (k, b, H), where each row of the result comes from
        columns = column + torch.where(mirrored > 0, w.flip(0), w) - self.pad
        inside = ((rows >= 0) & (rows < height)).unsqueeze(-1) & ((columns >= 0) & (columns < width)).unsqueeze(-2)
        pixel = rows.clamp(0, height - 1).unsqueeze(-1) * width + columns.clamp(0, width - 1).unsqueeze(-2)
        pixel = pixel.flatten(-2).unsqueeze(-2).expand(*x.shape[:-2], -1)  # (k, b, C, H W)
        fill = torch.tensor(self.fill, dtype=x.dtype, device=x.device).view(channels, 1, 1)
        return torch.where(inside.unsqueeze(-3), x.flatten(-2).gather(-1, pixel).view(x.shape), fill)
