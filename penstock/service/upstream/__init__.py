"""The client's side of HTTP/1.1: where a server listens, and kept-alive connections to it. The router's, the benchmark's and
the commands'.

Knows nothing of what is asked or answered.
"""
