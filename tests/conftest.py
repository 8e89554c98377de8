"""What holds for every test."""

from hypothesis import settings

# Examples are the same at every run, and no example fails for being slow on a busy machine.
settings.register_profile("default suite", derandomize=True, deadline=None)
settings.load_profile("default suite")
