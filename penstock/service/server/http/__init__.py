"""The HTTP machinery that every dialect shares: guard, bodies, admission, answers, health, meters.

Knows no dialect's JSON.
"""
