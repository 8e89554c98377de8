"""Several servers as one service: a router, a gateway and replicas put together."""
