"""How good a model is and what making it smaller cost: divergence from a reference, task suites, intervals, reports.

Owns the measures and their uncertainty. Knows no engine: log probabilities and answers come from outside, texts as tokens.
"""
