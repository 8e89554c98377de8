"""`penstock simulate`. The simulation itself is `penstock.tools.sim`."""
