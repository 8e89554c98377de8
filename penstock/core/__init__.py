"""The heart: scheduler, sequences and KV blocks in pure Python.

Owns who runs, who waits and who holds which block. No torch, no I/O, no clock: time is an argument.
"""
