"""What layers remember of a sequence: groups of them, where their numbers lie, and parts that keep states."""
