"""Matrices in few bits, and products with them."""
