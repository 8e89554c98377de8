"""The data path: a client's request in, a replica's answer out, byte for byte but for marks and headers.

Knows connections and one request at a time. Knows no policy and no replica's history.
"""
