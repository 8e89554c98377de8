"""Draft heads trained on a model's own answers: examples, losses, files.

Owns everything between recorded hidden states and a folder that `--speculate` serves. Knows no engine and no tokenizer: texts
come as tokens, time as an argument.
"""
