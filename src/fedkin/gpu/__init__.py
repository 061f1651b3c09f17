"""Kernels of our own for a GPU, and how they are started, recorded and played."""
