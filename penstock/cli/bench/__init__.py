"""`penstock bench` and its subcommands. The benchmark itself is `penstock.tools.bench`."""
