"""What each tenant has of a step, while several have work. Knows sequences and who waits, not what is computed."""
