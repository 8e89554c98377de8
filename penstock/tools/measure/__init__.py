"""Measurements of this machine and of a live engine: calibration, accuracy, ceilings, environment.

Owns what is measured and how often. Judges nothing: `doctor` and `planner` do.
"""
