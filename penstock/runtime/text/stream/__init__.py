"""A generation's text as it is written: stop strings, reasoning apart from content."""
