"""Kernels by which ranks that share a card exchange numbers; they must not know what the numbers are."""
