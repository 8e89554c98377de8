"""The load client: connections, events, the server under load, and prompts in its tokens.

Must not know how a run is judged.
"""
