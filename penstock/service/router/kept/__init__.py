"""What replicas keep between requests: responses, conversations, files, batches. Where each is, and all of them as one list."""
