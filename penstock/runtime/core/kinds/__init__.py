"""Kinds of cache beside the plain one: blocks that only a window reads, states of a fixed size. A model with one full group
needs nothing of this package."""
