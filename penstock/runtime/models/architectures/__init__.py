"""One file per architecture: a config or GGUF header becomes a `ModelSpec` and weight recipes."""
