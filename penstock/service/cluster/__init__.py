"""Replicas placed on the machines of a Ray cluster: started, watched, scaled and replaced. Nothing else imports ray.

Ray finds room and reports when a node is gone; how many replicas there should be is the simulator's own rule. Knows no HTTP but
a replica's readiness, and no router: its caller learns which replicas come and go.
"""
