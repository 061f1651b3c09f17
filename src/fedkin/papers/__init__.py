"""The papers' settings, published values and claims: data, and their readers."""

from .reader import native, paper, preset, suited

__all__ = ["native", "paper", "preset", "suited"]
