"""A client's side of the conversation, without a socket: ids, replies, notes. Both clients share it."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Collection
from typing import TypeVar

from headway.common.errors import DeadlineError, RemoteError, VersionError, WireError
from headway.common.wire import codec
from headway.common.wire.endpoint import somebody_listens
from headway.common.wire.message import Message, by_tag
from headway.common.wire.messages.service import Failure

MAX_UNREAD_NOTES = 1024

T = TypeVar("T", bound=Message)


class Exchange:
    """Numbers requests, sorts what comes back, keeps the newest 1,024 unread notes."""

    def __init__(self, endpoint: str, accept: Collection[type[Message]], *, has_keys: bool) -> None:
        self.endpoint = endpoint
        self.counts: Counter[str] = Counter()
        self._has_keys = has_keys
        self._has_heard = False
        self._accept = by_tag(accept)
        # Random start: a restarted client of the same identity must not be answered with its predecessor's
        # replies.
        self._next_id = 1 + secrets.randbits(53)
        self._notes: deque[bytes] = deque(maxlen=MAX_UNREAD_NOTES)

    def request(self, message: Message) -> tuple[int, bytes]:
        """(request id, frame); a retry sends the same frame again."""
        request_id = self._next_id
        self._next_id += 1
        return request_id, codec.encode_frame("req", request_id, codec.encode(message))

    def note(self, message: Message) -> bytes:
        return codec.encode_frame("note", 0, codec.encode(message))

    def arrived(self, frames: list[bytes]) -> codec.Envelope | None:
        """The envelope of a reply; None for what is none: notes are kept, all else is counted and dropped.

        Raises:
            VersionError: the server speaks another version; every request to it is in vain.
        """
        if len(frames) != 1:
            self.counts["bad_wire"] += 1
            return None
        try:
            envelope = codec.decode_frame(frames[0])
        except VersionError:
            raise
        except WireError:
            self.counts["bad_wire"] += 1
            return None
        self._has_heard = True
        if envelope.kind in ("rep", "err"):
            return envelope
        if envelope.kind == "note":
            if len(self._notes) == MAX_UNREAD_NOTES:
                self.counts["notes_lost"] += 1
            self._notes.append(envelope.body)
        return None

    def take_notes(self, accept: Collection[type[T]] | None) -> list[Message]:
        """The unread notes in order; those of no accepted type are counted and dropped."""
        accepted = self._accept if accept is None else by_tag(accept)
        messages: list[Message] = []
        while self._notes:
            try:
                messages.append(codec.decode(self._notes.popleft(), accepted))
            except WireError:
                self.counts["notes_refused"] += 1
        return messages

    def result(self, envelope: codec.Envelope, reply: type[T]) -> T:
        """The reply message.

        Raises:
            RemoteError: the server answered with an error.
            VersionError: ... because of this side's version.
            WireError: the reply is not of type ``reply``.
        """
        if envelope.kind == "rep":
            return codec.decode(envelope.body, by_tag([reply]))
        failure = codec.decode(envelope.body, by_tag([Failure]))
        if failure.code == "version":
            raise VersionError(failure.message, remedy=failure.remedy)
        raise RemoteError(failure.message, remedy=failure.remedy, remote_code=failure.code)

    def too_late(self, message: Message, timeout_s: float) -> DeadlineError:
        """The error of an unanswered request, with the likeliest cause as its remedy."""
        what = f"no answer to {type(message).__name__} from {self.endpoint} within {timeout_s:g} s"
        if self._has_heard:
            return DeadlineError(
                what, remedy="the service has answered before; look whether it still runs, and at its log"
            )
        if not somebody_listens(self.endpoint):
            return DeadlineError(what, remedy="nothing listens there; start the service, or check the address")
        if self._has_keys:
            return DeadlineError(
                what,
                remedy="check the keys: server_key must be the service's public key, "
                "and the service may admit known client keys only; or it is busy, see its log",
            )
        return DeadlineError(what, remedy="the service is busy, see its log; or it wants keys, then pass server_key")
