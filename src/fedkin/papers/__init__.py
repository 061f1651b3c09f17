"""The papers' settings and published values: data, and their reader."""

from .reader import native, paper, preset, suited

__all__ = ["native", "paper", "preset", "suited"]
