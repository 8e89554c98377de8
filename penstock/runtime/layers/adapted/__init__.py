"""Sublayers whose tokens may each have an adapter. They stand in for the plain ones once a model is loaded.

Adapters lie in numbered slots, 0 being none. In a step without adapters the plain sublayer computes alone.
"""
