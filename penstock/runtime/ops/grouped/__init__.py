"""Products of rows that belong to different adapters."""
