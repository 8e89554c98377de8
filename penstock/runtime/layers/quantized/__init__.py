"""Sublayers whose matrices stay in few bits. They stand in for the plain ones."""
