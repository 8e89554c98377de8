"""Chat templates, rendered in a sandbox with bounded work."""
