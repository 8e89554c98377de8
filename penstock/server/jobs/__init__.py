"""Work that nobody waits for: files, batches and the runner that answers their lines. Knows no engine."""
