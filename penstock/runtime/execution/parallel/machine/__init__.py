"""What ranks of one machine share: its processors, its memory, one card."""
