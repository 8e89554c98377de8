"""Settings of a server searched on the simulator, the few best measured by turns, and what was found kept with its evidence.

Owns which settings are tried, how they are ranked, and when chance is excluded. Starts no server and reads no clock.
"""
