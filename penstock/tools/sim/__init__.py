"""Fleets in virtual time: the engine's own scheduler with a cost in place of a device.

Owns the event queue. No clock but its own.
"""
