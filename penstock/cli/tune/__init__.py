"""`penstock tune`: settings found for a model on this machine, and where they are kept. The search is `penstock.tools.tune`."""
