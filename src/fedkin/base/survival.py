"""Times until an event: Cox's partial likelihood, and Harrell's C-index.

A target is (time, event): when a patient was last seen, and whether that was because the event came (1) or because the
watching ended (0, censored). A model's one output is the log risk, of which only differences mean something.
"""

from __future__ import annotations

import torch
from torch import Tensor

PAIRS_AT_ONCE = 1 << 24
"""Pairs of patients that are looked at in one go."""


def cox(outputs: Tensor, targets: Tensor, weight: Tensor | None = None) -> Tensor:
    """The negative partial log-likelihood of a batch (Cox 1972; ties as Breslow has them), over the number of samples:

    sum over events i of  log(sum over j with time_j >= time_i of exp(h_j)) - h_i,  divided by b

    outputs (b, 1) or (b,); targets (b, 2). Over samples, not over events: so the mean over silos that FedAvg forms is
    the likelihood of all silos together, each silo with a baseline of its own. A batch without events is 0, and moves
    nothing. With weights (b,) a sample counts so often, in sums over events and over those at risk; 0 is not there.
    """
    risk, (time, event) = outputs.reshape(len(outputs)), targets.unbind(1)
    if weight is not None:  # who does not count stands behind all others, and so is at risk with none of them
        time = torch.where(weight > 0, time, -torch.inf)
        event = event * weight
    order = time.argsort(descending=True, stable=True)
    seen = -time[order]
    risk, event = risk[order], event[order]
    counted = risk
    if weight is not None:
        counted = risk + weight[order].clamp(min=torch.finfo(risk.dtype).tiny).log()
    at_risk = counted.logcumsumexp(0)[torch.searchsorted(seen, seen, right=True) - 1]
    number = len(outputs) if weight is None else weight.sum().clamp(min=torch.finfo(risk.dtype).tiny)
    return (event * (at_risk - risk)).sum() / number


def in_time(targets: Tensor) -> Tensor:
    """(n,) whole numbers by which two patients can be compared if one had the event and the other's is higher: they
    were seen longer, or as long without the event."""
    return 2 * _rank(targets[:, 0]) + (targets[:, 1] == 0)


def _rank(values: Tensor) -> Tensor:
    """(n,) how many are smaller."""
    return torch.searchsorted(values.sort().values, values.contiguous())


def comparable_with(targets: Tensor) -> Tensor:
    """(n,) with how many others a patient who had the event can be compared, as having had it first; 0 for the rest."""
    order = in_time(targets)
    return torch.where(targets[:, 1] > 0, _rank(-order), 0)


def c_index(outputs: Tensor, targets: Tensor) -> Tensor:
    """Harrell's: the share of the comparable pairs in which the one who had the event first has the higher risk; equal
    risks count half. NaN where no two patients can be compared, or a risk is NaN."""
    risk, order = outputs.reshape(len(outputs)).double(), in_time(targets)
    if risk.isnan().any():
        return torch.tensor(torch.nan, dtype=torch.float64)
    place = _rank(risk)
    events, longer = targets[:, 1] > 0, comparable_with(targets)
    below, equal = _among_the_first(place[order.argsort(descending=True)], longer[events], place[events])
    return (below + equal / 2).sum() / longer.sum()  # 0 / 0 is NaN


def _among_the_first(values: Tensor, first: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """For each query: how many of the `first` (q,) values (n,) are below the one `asked` (q,), and how many equal it.

    All are whole numbers from 0 on. A wavelet matrix: values are parted bit by bit, and each query follows its own.
    """
    start, below = torch.zeros_like(first), torch.zeros_like(first)
    for bit in reversed(range(max(1, int(values.max()).bit_length()))):
        ones = (values >> bit) & 1
        zeros_before = torch.cat([ones.new_zeros(1), (1 - ones).cumsum(0)])
        to_ones = ((asked >> bit) & 1).bool()
        from_start, from_first = zeros_before[start], zeros_before[first]
        below += torch.where(to_ones, from_first - from_start, 0)
        start = torch.where(to_ones, zeros_before[-1] + start - from_start, from_start)
        first = torch.where(to_ones, zeros_before[-1] + first - from_first, from_first)
        values = torch.cat([values[ones == 0], values[ones == 1]])
    return below.double(), (first - start).double()


def pairs(outputs: Tensor, targets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, n) each: 1 where the patient of the row had the event and the column's can be compared, and of that what
    it counts for the C-index: 1 if the row's risk is higher, 1/2 if it is equal."""
    risk, order = outputs.reshape(len(outputs)).double(), in_time(targets)
    comparable = (order > order[rows, None]) & (targets[rows, 1] > 0)[:, None]
    won = (risk < risk[rows, None]).double() + (risk == risk[rows, None]).double() / 2
    return comparable.double(), comparable * won


def pairs_of_each(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) each: the comparable pairs that a patient is in, on either side, and what they count for the C-index."""
    n = len(targets)
    total = torch.zeros(2, n, dtype=torch.float64)
    for rows in torch.split((targets[:, 1] > 0).nonzero().squeeze(1), max(1, PAIRS_AT_ONCE // max(1, n))):
        for side, found in zip(total, pairs(outputs, targets, rows), strict=True):
            side += found.sum(0)
            side[rows] += found.sum(1)
    return total[0], total[1]
