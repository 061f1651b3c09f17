"""Linear models of one silo's rows, to their optimum in double precision: what needs no network and nobody else.

With b the weights of the inputs, which are penalised, and a constant (of Cox's model none), which is not, minimised is

    sum over rows of weight × loss  +  ½ · penalty · ||b||²

where the loss is ½ (y - output)² for numbers, the cross-entropy for classes, and Cox's partial likelihood (ties as
Breslow has them) for times until an event. A penalty of 1 is scikit-learn's C = 1, and its Ridge(alpha=1). The optimum
is one point, whatever the inputs: some alike, constant, or more than there are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Array = NDArray[np.float64]
STEPS = 100
FLAT = 1e-9
"""Of the rows' weight: the gradient at which a point is the optimum."""
Curved = Callable[[Array], tuple[float, Array, Array]]
"""(p,) parameters -> value, gradient (p,), Hessian (p, p)."""


def ridge(x: Array, y: Array, weight: Array, penalty: float) -> Array:
    """(1 + d,) of inputs (n, d) and numbers (n,): the constant first."""
    total = weight.sum()
    x_mean, y_mean = weight @ x / total, weight @ y / total
    centred = x - x_mean
    products = centred.T @ (weight[:, None] * centred) + penalty * np.eye(x.shape[1])
    b = np.linalg.solve(products, centred.T @ (weight * (y - y_mean)))
    return np.concatenate([[y_mean - x_mean @ b], b])


def left_out(x: Array, y: Array, weight: Array, penalties: Sequence[float]) -> float:
    """The penalty of these with which `ridge` errs least on rows that are left out, one at a time; of equals the
    largest. Nothing is fitted anew: a row's error grows by its own share in what is said of it."""
    total, root = weight.sum(), np.sqrt(weight)
    rows, target = root[:, None] * (x - weight @ x / total), root * (y - weight @ y / total)
    bends, axes = np.linalg.eigh(rows.T @ rows)
    turned = rows @ axes
    onto = turned.T @ target

    def error(penalty: float) -> float:
        shrunk = 1 / (np.maximum(bends, 0.0) + penalty)
        own = np.minimum(weight / total + (turned**2) @ shrunk, 1 - 1e-9)
        return float(np.square((target - turned @ (shrunk * onto)) / (1 - own)).sum())

    return min(sorted(penalties, reverse=True), key=error)


def logistic(x: Array, y: NDArray[np.bool_], weight: Array, penalty: float) -> Array:
    """(1 + d,) the log odds of what is true in y (n,); it has to be true and false somewhere."""
    design, told = _with_one(x), y.astype(np.float64)
    ridges = penalty * np.r_[0.0, np.ones(x.shape[1])]

    def curved(b: Array) -> tuple[float, Array, Array]:
        odds = design @ b
        chance = special.expit(odds)
        value = weight @ (np.logaddexp(0, odds) - told * odds) + 0.5 * ridges @ b**2
        slope = design.T @ (weight * (chance - told)) + ridges * b
        bend = design.T @ ((weight * chance * (1 - chance))[:, None] * design) + np.diag(ridges)
        return float(value), slope, bend

    start = np.zeros(design.shape[1])
    share = weight @ told / weight.sum()
    start[0] = np.log(share / (1 - share))
    return _newton(curved, start, float(weight.sum()))


def multinomial(x: Array, y: NDArray[np.int64], classes: int, weight: Array, penalty: float) -> Array:
    """(1 + d, classes) of classes 0, 1, … (n,), each of which has to occur; all classes' weights are penalised."""
    design, told = _with_one(x), np.eye(classes)[y]
    ridges = penalty * np.r_[0.0, np.ones(x.shape[1])][:, None]

    pulled, column = design.T @ (weight[:, None] * told), weight[:, None]

    def value_and_slope(flat: Array) -> tuple[float, Array]:
        b = flat.reshape(-1, classes)
        outputs = design @ b
        top = outputs.max(axis=1, keepdims=True)
        chances = np.exp(outputs - top)
        whole = chances.sum(axis=1, keepdims=True)
        penalised = ridges * b
        value = weight @ (np.log(whole) + top)[:, 0] + np.vdot(b, 0.5 * penalised - pulled)
        chances *= column / whole
        return float(value), (design.T @ chances - pulled + penalised).ravel()

    start = np.zeros((design.shape[1], classes))
    start[0] = np.log(weight @ told / weight.sum())
    found = optimize.minimize(
        value_and_slope,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": 50 * STEPS,
            "maxfun": 100 * STEPS,
            "maxcor": 20,
            "ftol": 0.0,
            "gtol": 100 * FLAT * weight.sum(),
        },
    )
    return np.asarray(found.x, dtype=np.float64).reshape(-1, classes)


def cox(x: Array, lived: Array, weight: Array, penalty: float) -> Array:
    """(d,) the log risk of inputs (n, d); lived (n, 2): time and event. Without an event it is 0."""
    order = np.argsort(-lived[:, 0], kind="stable")  # whoever is at risk at a time stands before
    x, (time, event), weight = x[order], lived[order].T, weight[order]
    last = np.searchsorted(-time, -time, side="right") - 1
    told = np.flatnonzero(event > 0)
    counted = weight[told] * event[told]

    def curved(b: Array) -> tuple[float, Array, Array]:
        risk = x @ b
        top = risk.max()
        exp = weight * np.exp(risk - top)
        zero, one = np.cumsum(exp)[last[told]], np.cumsum(exp[:, None] * x, axis=0)[last[told]]
        mean = one / zero[:, None]
        value = counted @ (np.log(zero) + top - risk[told]) + 0.5 * penalty * b @ b
        slope = counted @ (mean - x[told]) + penalty * b
        share = np.zeros(len(x))  # how often somebody at risk is counted, over all events at which it is
        np.add.at(share, last[told], counted / zero)
        share = np.cumsum(share[::-1])[::-1] * exp
        bend = x.T @ (share[:, None] * x) - mean.T @ (counted[:, None] * mean) + penalty * np.eye(x.shape[1])
        return float(value), slope, bend

    if not len(told):
        return np.zeros(x.shape[1])
    return _newton(curved, np.zeros(x.shape[1]), float(weight.sum()))


def _with_one(x: Array) -> Array:
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


def _newton(curved: Curved, start: Array, weight: float) -> Array:
    """The lowest point of what is curved upwards: Newton's steps, halved until they lead down."""
    b, (value, slope, bend) = start, curved(start)
    for _ in range(STEPS):
        if np.abs(slope).max(initial=0.0) <= FLAT * weight:
            break
        step = np.linalg.solve(bend, slope)
        size, there = 1.0, curved(b - step)
        while not there[0] <= value - 1e-4 * size * float(slope @ step) and size > 1e-10:
            size /= 2
            there = curved(b - size * step)
        if not there[0] <= value:  # no lower than rounding
            break
        b, (value, slope, bend) = b - size * step, there
    return b
