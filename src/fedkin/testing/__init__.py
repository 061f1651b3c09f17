"""Whether a method keeps its contract, seen on a small federation."""

from .post import Post, by_post, one_each

__all__ = ["Post", "by_post", "one_each"]
