"""One model over several ranks: who they are, how they exchange numbers, how each gets its part, and runners for all of them.

A step is announced by the first rank; what it computes is a `Batch`, the same value for everybody. Layers know nothing of it.
"""
