"""Adapters as models of their own: names for clients, and what admins do to them while the server runs."""
