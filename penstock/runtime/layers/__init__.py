"""Torch modules, one per spec type.

Built from a `ModelSpec`; never ask about devices, ranks or quantization.
"""
