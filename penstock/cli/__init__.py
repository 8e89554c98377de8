"""One module (or folder) a command: flags in, tables or JSON out.

Owns the wording of reports. Computes nothing that a library could need.
"""
