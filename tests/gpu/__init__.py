"""Laws over the CUDA runner, and kernels against their definitions. `make test-gpu` runs them.

They need a GPU, torch and triton, and nothing else: neither pytest nor files nor a network.
"""
