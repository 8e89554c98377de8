"""Work without a waiting client: files, batches and the runner that answers their lines. Knows no engine."""
