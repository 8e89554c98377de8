"""Architectures with mixtures of experts."""
