"""Several models in one server: which of them are in memory, and when they come and go.

Owns the life of their engines. Who may be loaded and who has to leave is decided in `policy`, from values and the time alone.
Knows no dialect.
"""
