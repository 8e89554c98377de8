"""Does a server do what real clients expect? Checks through the clients' own libraries, for any server, ours or another's.

Owns the checks and how they are run and judged. Knows nothing of our server: what it says of others it says of us.
"""
