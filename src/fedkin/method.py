"""Everything that a method of one's own needs, by one import: see `fedkin.methods._method`."""

from .methods._method import (
    Cohort,
    Local,
    Memory,
    Message,
    Method,
    Model,
    Problem,
    Proximal,
    Rng,
    Server,
    State,
    Tensor,
    Upload,
)

__all__ = [
    "Cohort",
    "Local",
    "Memory",
    "Message",
    "Method",
    "Model",
    "Problem",
    "Proximal",
    "Rng",
    "Server",
    "State",
    "Tensor",
    "Upload",
]
