"""Many engines and clients as one service: server, router, gateway, cluster, and what they store."""
