"""Composition roots: a model's name becomes an engine, and an engine becomes a server.

Owns the order of a start and of an end. Any package may be imported here; no package below may import this one.
"""
