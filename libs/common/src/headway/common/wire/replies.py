"""The newest answers of a server, for requests that are repeated."""

from __future__ import annotations

from collections import OrderedDict

MAX_CACHED_REPLIES = 1024
MAX_CACHED_BYTES = 8 << 20
Key = tuple[bytes, int, int]
"""Key of a request: peer, id, hash of the body."""


class ReplyCache:
    """The newest replies by (peer, request id, hash of the body), bounded in number and bytes."""

    def __init__(self) -> None:
        self._replies: OrderedDict[Key, bytes] = OrderedDict()
        self._num_bytes = 0

    def get(self, key: Key) -> bytes | None:
        return self._replies.get(key)

    def put(self, key: Key, reply: bytes) -> None:
        self._replies[key] = reply
        self._num_bytes += len(reply)
        while len(self._replies) > MAX_CACHED_REPLIES or self._num_bytes > MAX_CACHED_BYTES:
            _, oldest = self._replies.popitem(last=False)
            self._num_bytes -= len(oldest)

    def __len__(self) -> int:
        return len(self._replies)
