"""Heads that guess from the target's own hidden states: where those are kept, Medusa and EAGLE heads, their files.

Knows no sequence and no request: rows, positions and keys that somebody else gave.
"""
