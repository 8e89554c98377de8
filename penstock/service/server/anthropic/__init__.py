"""Anthropic's dialect: the Messages API, its bodies, events and errors. Knows no engine and no other dialect's bodies."""
