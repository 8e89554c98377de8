"""Tools that choose, size, measure, explain and tune a deployment."""
