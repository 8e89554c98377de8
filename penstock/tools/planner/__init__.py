"""What to buy and how to launch it: candidates, capacity under an SLO, cost; searched on the simulator.

Pure: no clock, no printing.
"""
