"""Which replica a request goes to. `policy.py` is pure; router and simulator share it."""
