"""Which requests may run with which adapter: read beside the loop, laid on the device when there is room."""
