"""KV blocks from engine to engine: what this one offers to others, and what it fetches from them.

A block travels as the record that tiers keep (`tiers/record.py`), named by content and format. A peer proves that it knows the
fleet's key before anything is said. Whatever is doubtful ends the connection: blocks that did not come are computed here.
"""
