"""Many replicas as one service: which replica a request goes to, and how its answer comes back whole.

`policy.py`, `breaker.py` and `fleet.py` are pure; the simulator shares `policy.py`. Knows no engine and no tokenizer.
"""
