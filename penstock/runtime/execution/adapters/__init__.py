"""Adapters on a device: slots, what lies in them, and which slot each row has."""
