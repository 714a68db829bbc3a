"""Runs any lowered schedule: one loop over its actions, one table from kind to function.

Receives are posted ahead of their place in the list and sends go out in the background, so a rank
waits at the action that consumes a message, or when too many of its sends are unfinished. With
``overlap`` off the same messages are waited for at their place.

Why no wait here can last forever. ``validate`` has run the lists under the strictest rule: a send
and its receive happen together, each at its place. Take the order in which it did so. Here a
receive is posted at its place or earlier, and a wait is for a message whose send and receive come,
in that order, before the waiting action or are that action itself. So if everything earlier in that
order is done or posted, the waiting action can finish too, and the next one has all its inputs. It
does not matter which of its earlier sends a rank waits for, so the argument holds for any limit on
unfinished sends, zero included (``overlap`` off).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeAlias

import torch
from headway.common.node.failpoints import failpoint
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule.actions import RECEIVES, SENDS, Action, Kind
from headway.trainer.comm.interface import Ticket
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.data.batches import MicroBatch
from headway.trainer.device.recorder import Recorder
from headway.trainer.model.chunk import Chunk, Forward
from headway.trainer.pipeline.messages import DIRECTIONS, MessageKey, receiver_of, tag_of

POSTED_AHEAD = 3
"""Receives open beyond the one being consumed: enough to hide a message behind two computations."""

MAX_UNFINISHED_SENDS = 4
"""Unfinished sends allowed per kind and peer, each of which keeps its tensor: as many as the peer
has receives posted, so that a rank waits only when it is further ahead than the peer's receives."""

_WEIGHT_GRADIENTS = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)

Handler: TypeAlias = "Callable[[Pipeline, Action], None]"
BucketHandler: TypeAlias = Callable[[int, int], None]
"""Called with a chunk and the number of a bucket in it."""


class Pipeline:
    """One pass over one rank's action list.

    Each pass has a new object, so an aborted pass leaves no state.

    Its activations are freed with it by reference counting, because after an abort there is no time
    for a garbage collection. So nothing that it holds may refer to it; ``handlers`` get it as an
    argument instead of capturing it.

    Args:
        handlers: a function for each kind that is neither a computation nor a message.
        before_bucket: called with chunk and bucket before the bucket's parameters are used.
        after_bucket: called with chunk and bucket behind its last weight gradient of the pass, for
        all buckets of a chunk but the first, which the action behind the chunk's last backward
        stands for.
        check: raises ``Aborted`` when the generation was fenced; called between actions.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        chunks: Sequence[Chunk],
        pipe: PipeComm,
        recorder: Recorder,
        *,
        step: int,
        micro_batch_size: int,
        loss_scale: float,
        train: bool,
        overlap: bool,
        handlers: Mapping[Kind, Handler],
        check: Callable[[], None],
        before_bucket: BucketHandler,
        after_bucket: BucketHandler | None = None,
    ) -> None:
        self._actions, self._chunks, self._pipe, self._recorder = actions, chunks, pipe, recorder
        self._step, self._size, self._loss_scale = step, micro_batch_size, loss_scale
        self._train, self._overlap = train, overlap
        self._check, self._before_bucket, self._after_bucket = check, before_bucket, after_bucket
        self._last = {a.chunk: a.micro_batch for a in actions if a.kind in _WEIGHT_GRADIENTS}
        """By chunk, the micro-batch whose weight gradients are added last."""
        self._handlers = _HANDLERS | dict(handlers)
        self._to_post = deque(action for action in actions if action.kind in RECEIVES)
        self._num_open = self._num_posted = self._num_reached = 0  # receives
        self._posted: dict[MessageKey, tuple[Ticket, torch.Tensor, Action]] = {}
        self._sent: dict[tuple[Kind, int], deque[tuple[Ticket, Action]]] = {
            (action.kind, action.peer): deque() for action in actions if action.kind in SENDS
        }
        self._inbox: dict[
            MessageKey, torch.Tensor
        ] = {}  # arrived, or made here by a neighbouring chunk
        self._outbox: dict[MessageKey, torch.Tensor] = {}  # made here, to be sent
        self._forwards: dict[tuple[int, int], Forward] = {}
        self.batches: Sequence[MicroBatch] = ()
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=chunks[0].device)

    def run(self) -> None:
        """Run the list.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        if self._overlap:
            self._post_ahead()
        for action in self._actions:
            self._check()
            self._handlers[action.kind](self, action)
        for sent in self._sent.values():
            self._retire(sent, 0)

    def _forward(self, action: Action) -> None:
        chunk = self._chunks[action.chunk]
        batch = self.batches[action.micro_batch] if self.batches else MicroBatch()
        x = batch.tokens if chunk.is_first else self._take(Kind.RECV_FORWARD, action)
        assert x is not None
        self._before_bucket(action.chunk, 0)  # a wait for it is not time of the forward
        failpoint("worker.in_forward", step=self._step, micro_batch=action.micro_batch)
        with self._record(action):
            forward = chunk.forward(
                x,
                batch.labels,
                batch.mask,
                borders=batch.borders,
                loss_scale=self._loss_scale,
                train=self._train,
                before_bucket=partial(self._before_bucket, action.chunk),
            )
        output = forward.take_output()
        if chunk.is_last:
            self.loss_sum += output.double()
        else:
            self._hand_on(action, Kind.RECV_FORWARD, output)
        if self._train:
            self._forwards[action.chunk, action.micro_batch] = forward

    def _backward(self, action: Action) -> None:
        chunk, key = self._chunks[action.chunk], (action.chunk, action.micro_batch)
        grad_output = None if chunk.is_last else self._take(Kind.RECV_BACKWARD, action)
        whole, after_bucket = action.kind is Kind.BACKWARD, None
        if self._after_bucket is not None and self._last[action.chunk] == action.micro_batch:
            after_bucket = partial(self._after_bucket, action.chunk)
        with self._record(action):
            grad = chunk.backward(
                self._forwards[key], grad_output, weight=whole, after_bucket=after_bucket
            )
        if grad is not None:
            self._hand_on(action, Kind.RECV_BACKWARD, grad)
        if whole:
            del self._forwards[key]

    def _backward_weight(self, action: Action) -> None:
        with self._record(action):
            self._chunks[action.chunk].backward_weight(
                self._forwards.pop((action.chunk, action.micro_batch))
            )

    def _send(self, action: Action) -> None:
        direction = DIRECTIONS[action.kind]
        kind = Kind.RECV_FORWARD if direction == "forward" else Kind.RECV_BACKWARD
        _, key = receiver_of(action, kind, self._pipe)
        tensor = self._outbox.pop(key).contiguous()
        with self._record(action, nbytes=tensor.nbytes) as sequence:
            ticket = self._pipe.send(direction, tensor, action.peer, tag_of(key))
            self._recorder.name(sequence, ticket.collective)
            if not self._overlap:
                ticket.wait()
        if self._overlap:
            sent = self._sent[action.kind, action.peer]
            sent.append((ticket, action))
            self._retire(sent, MAX_UNFINISHED_SENDS)

    def _retire(self, sent: deque[tuple[Ticket, Action]], limit: int) -> None:
        """Release finished sends, then wait for the oldest until ``limit`` are left.

        ``sent`` is one lane's: its messages go to one peer, so they finish in the order issued.
        """
        while sent and sent[0][0].done():
            sent.popleft()[0].wait()  # raises if it failed
        while len(sent) > limit:
            ticket, action = sent.popleft()
            with self._record(action, WAITING, collective=ticket.collective):
                ticket.wait()

    def _receive(self, action: Action) -> None:
        # posted here at the latest, since a peer may wait for its send
        self._num_reached += 1
        while self._num_posted < self._num_reached:
            self._post()
        if not self._overlap:
            self._arrived(action)

    def _post_ahead(self) -> None:
        while self._to_post and self._num_open <= POSTED_AHEAD:
            self._post()

    def _post(self) -> None:
        """Post the list's next receive; the order is the same with ``overlap`` on and off."""
        action = self._to_post.popleft()
        chunk = self._chunks[action.chunk]
        buffer = torch.empty(
            chunk.activation_shape(self._size),
            dtype=chunk.precision.param_dtype,
            device=chunk.device,
        )
        key = (action.kind, action.chunk, action.micro_batch)
        ticket = self._pipe.recv(DIRECTIONS[action.kind], buffer, action.peer, tag_of(key))
        self._posted[key] = ticket, buffer, action
        self._num_open += 1
        self._num_posted += 1

    def _take(self, kind: Kind, consumer: Action) -> torch.Tensor:
        """The message or local result that ``consumer`` needs."""
        key = (kind, consumer.chunk, consumer.micro_batch)
        if key in self._posted:
            self._arrived(self._posted[key][2])
            self._post_ahead()
        return self._inbox.pop(key)

    def _arrived(self, action: Action) -> None:
        """Wait for a posted receive and store its tensor for the consumer."""
        key = (action.kind, action.chunk, action.micro_batch)
        ticket, buffer, _ = self._posted.pop(key)
        with self._record(action, WAITING, buffer.nbytes, ticket.collective):
            ticket.wait()
        self._num_open -= 1
        self._inbox[key] = buffer

    def _hand_on(self, action: Action, kind: Kind, tensor: torch.Tensor) -> None:
        rank, key = receiver_of(action, kind, self._pipe)
        box = self._inbox if rank == self._pipe.rank else self._outbox
        box[key] = tensor

    def _record(
        self, action: Action, flags: int = 0, nbytes: int = 0, collective: int = 0
    ) -> AbstractContextManager[int]:
        return self._recorder.record(
            action.kind,
            step=self._step,
            micro_batch=action.micro_batch,
            chunk=action.chunk,
            peer=action.peer,
            nbytes=nbytes,
            flags=flags,
            collective=collective,
        )


_HANDLERS: dict[Kind, Handler] = {
    Kind.FORWARD: Pipeline._forward,
    Kind.BACKWARD: Pipeline._backward,
    Kind.BACKWARD_INPUT: Pipeline._backward,
    Kind.BACKWARD_WEIGHT: Pipeline._backward_weight,
    Kind.SEND_FORWARD: Pipeline._send,
    Kind.SEND_BACKWARD: Pipeline._send,
    Kind.RECV_FORWARD: Pipeline._receive,
    Kind.RECV_BACKWARD: Pipeline._receive,
}
"""Functions, not bound methods: an object that holds its own methods needs garbage collection."""
