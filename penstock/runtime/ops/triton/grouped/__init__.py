"""Kernels over rows that are sorted into groups, each with matrices of its own."""
