"""Penstock: an inference system for language models."""
