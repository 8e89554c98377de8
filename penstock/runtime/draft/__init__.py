"""Speculative decoding: drafters that guess a sequence's next tokens, how often they are right, how many are worth checking.

Owns guesses and their measured acceptance. Torch-free and clock-free: the engine and the simulator use the same rule. Knows
nothing of blocks, steps in flight or tensors.
"""
