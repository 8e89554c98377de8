"""Sublayers that mix tokens, by kind of cache, and the table that finds them."""
