"""Engines over several ranks: their processes here and on other machines, what they agree on."""
