"""Weights of all clients as one matrix: a row is a module's parameters, then its float buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Field:
    """One named tensor inside a row: columns `start` to `stop`."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a module lies in a row of `size` numbers.

    The first `parameters` columns are trained; distances, cosines and proximal terms use only those. Float buffers
    (BatchNorm's running statistics) follow and are mixed and averaged like the rest. Integer buffers never travel:
    `counters` has their names, shapes and starting values.
    """

    fields: tuple[Field, ...]
    parameters: int
    size: int
    counters: tuple[tuple[str, Tensor], ...] = ()

    @staticmethod
    def of(module: nn.Module) -> Layout:
        fields: list[Field] = []
        at = 0
        trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        frozen = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        for name, tensor in [*trained, *frozen, *buffers]:
            fields.append(Field(name, tuple(tensor.shape), at))
            at = fields[-1].stop
        counters = tuple((n, b.detach().clone()) for n, b in module.named_buffers() if not b.is_floating_point())
        return Layout(tuple(fields), sum(p.numel() for _, p in trained), at, counters)

    def row(self, module: nn.Module, dtype: torch.dtype | None = None) -> Tensor:
        """(size,) the module's weights as a row."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return torch.cat([tensors[f.name].detach().reshape(-1).to(dtype) for f in self.fields])

    def tensors(self, W: Tensor) -> dict[str, Tensor]:
        """The named tensors of rows W (..., size), as views: (..., *shape)."""
        return {f.name: W[..., f.start : f.stop].view(W.shape[:-1] + f.shape) for f in self.fields}

    def trained(self, W: Tensor) -> dict[str, Tensor]:
        return {f.name: W[..., f.start : f.stop].view(W.shape[:-1] + f.shape) for f in self.fields[: self._count]}

    def rest(self, W: Tensor, start: int = 0) -> dict[str, Tensor]:
        """What is not trained: frozen parameters and float buffers. W may begin at column `start`."""
        return {
            f.name: W[..., f.start - start : f.stop - start].view(W.shape[:-1] + f.shape)
            for f in self.fields[self._count :]
        }

    @property
    def _count(self) -> int:
        return sum(f.start < self.parameters for f in self.fields)

    def flat(self, tensors: Mapping[str, Tensor], lead: int = 1, out: Tensor | None = None) -> Tensor:
        """Named tensors (those of `trained` or `rest`, in order) back to columns; `lead` leading dimensions stay."""
        return torch.cat([t.reshape(*t.shape[:lead], -1) for t in tensors.values()], dim=-1, out=out)

    def load(self, module: nn.Module, row: Tensor) -> nn.Module:
        """Writes a row into a module and returns it."""
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, tensor in self.tensors(row).items():
                own[name].copy_(tensor)
        return module

    def columns(self, layers: str | Sequence[str] = "all") -> Tensor | None:
        """The trained columns of some layers: 'all' (None), 'head' (the last layer), or layers by name."""
        if layers == "all":
            return None
        trained = self.fields[: self._count]
        if layers == "head":
            last = trained[-1].name.rpartition(".")[0]
            chosen = [f for f in trained if f.name.rpartition(".")[0] == last]
        else:
            wanted = [layers] if isinstance(layers, str) else list(layers)
            for name in wanted:
                if not any(f.name == name or f.name.startswith(f"{name}.") for f in trained):
                    layer_names = sorted({f.name.rpartition(".")[0] for f in trained})
                    raise ValueError(f"The model has no layer {name!r}; its layers are {', '.join(layer_names)}.")
            chosen = [f for f in trained if any(f.name == n or f.name.startswith(f"{n}.") for n in wanted)]
        return torch.cat([torch.arange(f.start, f.stop) for f in chosen])

    def split(self, head: str | Sequence[str] = "head") -> tuple[Tensor, Tensor]:
        """Columns of the body and of the head; buffers belong to the body."""
        last = self.columns(head)
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[last if last is not None else slice(self.parameters)] = True
        return (~mask).nonzero().squeeze(1), mask.nonzero().squeeze(1)

    def moving(self, columns: Tensor) -> tuple[slice | Tensor, slice | Tensor]:
        """Where training is to move `columns` alone, their numbers or a mask (parameters,) or (size,): the trained ones
        among them, and those of the rest that stay; slices where they lie side by side.

        A float buffer moves if it is among the columns, or if any trained parameter does of the innermost module around
        it that has some: BatchNorm's statistics go with its own weight and bias.
        """
        mask = self._mask(columns)
        if not mask[: self.parameters].any():
            raise ValueError("There is nothing to train: none of these columns is of a trained parameter.")
        moved = {f.name: bool(mask[f.start : f.stop].any()) for f in self.fields}
        trained = [f.name for f in self.fields[: self._count]]
        stays = torch.zeros(self.size, dtype=torch.bool)
        for field in self.fields[self._count :]:
            around = field.name.rpartition(".")[0]
            while around and not any(name.startswith(f"{around}.") for name in trained):
                around = around.rpartition(".")[0]
            own = [name for name in trained if not around or name.startswith(f"{around}.")]
            stays[field.start : field.stop] = not moved[field.name] and not any(moved[name] for name in own)
        mask[self.parameters :] = False
        return _spanned(mask), _spanned(stays)

    def _mask(self, columns: Tensor) -> Tensor:
        """(size,) which columns are meant."""
        columns, mask = columns.detach().cpu(), torch.zeros(self.size, dtype=torch.bool)
        if columns.dtype == torch.bool:
            if columns.shape not in ((self.parameters,), (self.size,)):
                raise ValueError(
                    f"A mask of columns has shape {tuple(columns.shape)}; it should be ({self.parameters},), a value "
                    f"for each trained parameter, or ({self.size},), with buffers."
                )
            mask[: len(columns)] = columns
        else:
            if columns.numel() and not 0 <= int(columns.min()) <= int(columns.max()) < self.size:
                raise ValueError(
                    f"Columns are numbered from 0 to {self.size - 1}; these go from {int(columns.min())} to "
                    f"{int(columns.max())}."
                )
            mask[columns.long()] = True
        return mask


def _spanned(mask: Tensor) -> slice | Tensor:
    """What picks the columns of a mask: a slice, and so without a copy, where they lie side by side."""
    found = mask.nonzero().squeeze(1)
    if not len(found):
        return slice(0, 0)
    first, last = int(found[0]), int(found[-1]) + 1
    return slice(first, last) if last - first == len(found) else found
