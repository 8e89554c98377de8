"""What a router says of a request to a replica that knows its key: for whom it asks, and what the answer's ids follow from.

A server with keys believes a stamp only beside the router's own key. One without any key lets everybody do everything: there is
nothing that a stamp could add.
"""

import os
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

MAX_NAME = 128
NOBODY = "-"
PAGE_BYTES = 4096
"""Of randomness, drawn at a time."""
TRUST_HEADER = b"x-penstock-trust"
"""In answers to a request whose stamp was believed."""


class RelayStamp(NamedTuple):
    key: bytes
    """Random, known to nobody else: ids and seeds of the answer follow from it."""
    created: int
    tenant: str = ""
    """Empty where the router tells nobody apart."""
    priority: int = 0

    def encode(self) -> bytes:
        return b"%b %d %b %d" % (self.key, self.created, _name(self.tenant), self.priority)


def read_stamp(value: bytes) -> RelayStamp | None:
    """None for what is no stamp."""
    words = value.decode("latin-1").split(" ")
    if len(words) != 4 or not words[1].isdecimal() or len(words[1]) > 12:
        return None
    key, created, tenant, priority = words
    if not 0 < len(key) <= MAX_NAME or not key.isascii() or len(tenant) > MAX_NAME:
        return None
    number = int(priority) if priority.removeprefix("-").isdecimal() and len(priority) < 6 else 0
    return RelayStamp(key.encode(), int(created), "" if tenant == NOBODY else tenant, number)


def _name(tenant: str) -> bytes:
    """A word that no two tenants share."""
    if not tenant:
        return NOBODY.encode()
    word = "%2D" if tenant == NOBODY else quote(tenant, safe="")
    if len(word) > MAX_NAME:
        word = "sha256:" + sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()
    return word.encode()


def random_names(num_digits: int) -> Iterator[bytes]:
    """Hexadecimal digits that nobody can guess, none given twice, without end."""
    while True:
        page = os.urandom(PAGE_BYTES).hex().encode()
        for at in range(0, len(page) - num_digits, num_digits):
            yield page[at : at + num_digits]
