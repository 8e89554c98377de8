"""Runs a `Batch` on one device. Sole home of tensors that outlive a step.

Fed by batches alone; knows no request queue and no text.
"""
