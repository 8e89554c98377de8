"""Kernels over latents: what is cached of a token serves as key and value of every head."""
