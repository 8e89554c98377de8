"""Speculative decoding: who guesses a sequence's next tokens, how good the guesses are, and how many are worth checking.

Owns guesses and what is known of their worth. Torch-free and clock-free: the engine and the simulator use the same rule. Knows
nothing of blocks, steps in flight or tensors.
"""
