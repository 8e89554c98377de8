"""From rows of scores to tokens: draws and their random numbers, penalties, and the sampler that puts them together.

Knows nothing of requests: what is asked comes as tensors.
"""

from penstock.runtime.ops.sampling import draw, sample, whole

__all__ = ["draw", "sample", "whole"]
