"""What a client meets first, at a server and at a router alike: keys, hosts, origins, limits on headers, bodies and silence.

Decides on headers as a parser read them. Knows no route, no dialect's answers and no replica.
"""
