"""Plans beside what was measured: how near they were, and why not."""
