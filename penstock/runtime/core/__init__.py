"""The scheduler, sequences and KV blocks, in pure Python.

Owns which sequences run, which wait, and which blocks each holds. No torch, no I/O, no clock: time is an argument.
"""
