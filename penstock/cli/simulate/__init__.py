"""`penstock simulate`. The simulation itself is `penstock.sim`."""
