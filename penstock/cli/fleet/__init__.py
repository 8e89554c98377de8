"""Commands for a service of several replicas: route, keys, usage."""
