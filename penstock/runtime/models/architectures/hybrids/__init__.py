"""Architectures whose layers keep states beside keys and values."""
