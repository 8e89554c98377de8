"""What a run amounts to: figures, intervals, doubts, comparison, page.

Computed from answers alone. Sends nothing and reads no clock.
"""
