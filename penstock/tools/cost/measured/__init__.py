"""Costs from steps that were measured: logs, fits, profiles, and how a machine's pace changes."""
