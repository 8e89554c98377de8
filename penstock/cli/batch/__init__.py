"""`penstock batch`: requests that nobody waits for."""
