"""Answers over a WebSocket: frames around the same requests that HTTP brings. Knows no dialect and no engine."""
