"""What is kept between runs: SQLite databases with one writer and versioned schemas.

Owns the files and their writer. Knows no component's tables.
"""
