"""One engine in virtual time: step by step or by runs of steps, with its drafts, adapters and history."""
