"""Arrivals, lengths and traces: the load that bench, simulator and planner share. Draws from seeds; no clock."""
