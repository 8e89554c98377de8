"""Seconds a step takes: from a roofline, or fitted to measured steps.

Reads a batch's features and a model's spec. Knows no engine and no clock.
"""
