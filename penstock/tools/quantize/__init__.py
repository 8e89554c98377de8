"""Models made smaller: calibrated layer by layer, rounded by one of several methods, written in others' formats.

Owns everything between a model on disk and a smaller one beside it. Knows no engine and no clock.
"""
