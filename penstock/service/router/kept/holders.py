"""Which replica keeps what: responses, conversations, files and batches live where they were made. Pure.

Ids are learnt from answers. One that is not known, after a restart of the router say, is searched: replicas are asked in turn.
"""

import re
from collections import OrderedDict

from penstock.service.router.proxy.asked import Wanted

MAX_KNOWN = 100_000
MAX_READ_BYTES = 1 << 20
"""Of an answer that is looked through for ids."""
KEEPING = ("/v1/responses", "/v1/conversations", "/v1/files", "/v1/batches")
"""Something of requests there may be kept where they are answered."""
LISTS = ("/v1/files", "/v1/batches")
"""Where GET lists what all replicas keep."""

_PATH = re.compile(r"/v1/(?:responses|conversations|files|batches)/((?:resp|conv|file|batch)[_-][\w-]{1,80})(?:/|$)")
_ID = rb"(?:resp|conv|file|batch)[_-][\w-]{1,80}"
_FOUND = re.compile(rb'"(?:id|\w+_file_id)" ?: ?"(' + _ID + rb')"')
_NAMED = re.compile(_ID)


def kept_ids(path: str, wanted: Wanted) -> list[bytes]:
    """What a request is about: in its path, and in the fields that name what was kept."""
    found = _PATH.match(path)
    ids = [found.group(1).encode()] if found else []
    for name in (wanted.previous_response_id, wanted.input_file_id):
        if name and _NAMED.fullmatch(encoded := name.encode("utf-8", "surrogatepass")):
            ids.append(encoded)
    ids.extend(_NAMED.findall(bytes(wanted.conversation)))
    return ids


class Holders:
    """Replicas by what they keep; what was not asked for longest is forgotten first, and searched when asked for again."""

    def __init__(self) -> None:
        self._holders: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    def find(self, tenant: str, ids: list[bytes]) -> str:
        """Empty if none of them is known as this tenant's."""
        for id_ in ids:
            holder = self._holders.get((tenant, id_))
            if holder is not None:
                self._holders.move_to_end((tenant, id_))
                return holder
        return ""

    def learn(self, replica: str, tenant: str, answer: bytes) -> None:
        """From the beginning of an answer: what one tenant reads there leads no other one astray."""
        for id_ in _FOUND.findall(answer[:MAX_READ_BYTES]):
            self._holders[tenant, id_] = replica
            self._holders.move_to_end((tenant, id_))
        while len(self._holders) > MAX_KNOWN:
            self._holders.popitem(last=False)
