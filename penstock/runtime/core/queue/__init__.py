"""Who waits and who runs: order, admission, deadlines."""
