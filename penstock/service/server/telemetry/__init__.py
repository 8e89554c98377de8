"""What the server tells of itself: counters, traces, records, health."""
