"""`penstock bench` and its subcommands. The benchmark itself is `penstock.bench`."""
