"""How a command talks with a person: flags, config files, help, tables, progress.

Owns the terminal. Knows no command and nothing of inference.
"""
