"""Parts of the engine's loop: messages taken in, what is proposed for a step, steps that failed, and who hears of steps.

None of them knows the loop itself.
"""
