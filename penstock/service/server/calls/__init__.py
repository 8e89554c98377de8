"""A call from what a dialect asks to the last byte of its answer. Knows no dialect."""
