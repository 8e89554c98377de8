"""`penstock plan` and its subcommands. The search itself is `penstock.tools.planner`."""
