"""Amounts as people read them: bytes, counts, and nouns with their plural. Everything that prints an amount prints it so."""


def format_bytes(size: float) -> str:
    """1.50 GiB, in the largest binary unit that the size reaches."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:,.2f} {unit}"
    return f"{size:,.0f} B"


def format_count(count: float) -> str:
    """1,234 as it is; larger ones as 134.5 M."""
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,.0f}"


def counted(count: int, noun: str) -> str:
    """1 replica, 2 replicas."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
