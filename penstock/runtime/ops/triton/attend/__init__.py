"""Attention over the paged cache: runs of queries, single ones, and what the library does of it."""
