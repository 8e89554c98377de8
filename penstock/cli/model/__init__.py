"""Commands about models on this machine: fetch, list, show, verify."""
