"""Architectures as data: specs, weight recipes, the registry, and a catalogue of published shapes.

Torch-free. Knows no device.
"""
