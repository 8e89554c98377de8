"""Drafters put together for an engine, and trained for a model: whatever of speculation needs every layer."""
