"""Load on any OpenAI-compatible server, timed from when each request was due.

Owns what is sent, when, and how a run is judged. Knows no engine: everything goes over HTTP.
"""
