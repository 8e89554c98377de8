"""What is wrong, in which layer, and what to do about it: tables of rules over values. No I/O and no clock."""
