"""Joins the scheduler to a `Runner`, in a supervised process of its own.

Owns the loop, the process line and its messages. Torch-free: a runner is a protocol here.
"""
