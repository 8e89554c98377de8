"""The host's side of Triton kernels: launching, chaining launches, compiling them ahead of time."""
