"""The operator's API, on a port and with a key of its own: replicas, and where there is a gateway keys, budgets and rules."""
