"""One rank's pass: what it keeps of a micro-batch and for how long, and what its messages carry."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from headway.common.config import from_dict
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.gloo import GlooComm, gloo_options
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import PeerLost
from headway.trainer.comm.store import StoreClient, StoreServer
from headway.trainer.config import RunConfig
from headway.trainer.model.tape import Tape
from headway.trainer.pipeline.messages import TAG_MICRO_BATCHES, tag_of
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_weight_gradient_lets_go_of_its_tensors_before_the_next_one_runs() -> None:
    tape = Tape()
    alive: list[tuple[int, int]] = []
    tensors = [torch.zeros(3) for _ in range(4)]
    references = [weakref.ref(tensor) for tensor in tensors]

    class Watched:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def add(self) -> None:
            alive.append((len(self.tensor), sum(r() is not None for r in references)))

    for tensor in tensors:
        tape.queue(Watched(tensor))
    del tensor, tensors
    tape.finish()
    assert alive == [(3, 4), (3, 3), (3, 2), (3, 1)]


@pytest.mark.usefixtures("no_collections")
def test_the_output_of_a_forward_lives_only_as_long_as_its_taker_holds_it() -> None:
    model = tiny_model()
    part = Part(model, layers=range(1))
    forward = part.chunk.forward(random_batch(model).tokens)
    output = forward.take_output()
    reference = weakref.ref(output)
    del output
    assert reference() is None
    grad = torch.zeros(part.chunk.activation_shape(2), dtype=torch.float64)
    part.chunk.backward(forward, grad)


def test_tags_fit_in_31_bits_and_differ_between_messages_that_can_be_under_way_together() -> None:
    last = 2**31 - 1
    kinds = (Kind.RECV_FORWARD, Kind.RECV_BACKWARD)
    micro_batches = (0, 1, 32_767, 32_768, 65_536, TAG_MICRO_BATCHES - 1)
    tags = [tag_of(key) for key in itertools.product(kinds, range(256), micro_batches)]
    assert len(set(tags)) == len(tags)
    assert min(tags) >= 0 and max(tags) <= last
    for micro_batch in (TAG_MICRO_BATCHES, last):
        assert 0 <= tag_of((Kind.RECV_BACKWARD, 255, micro_batch)) <= last


def test_gloo_takes_the_tags_of_a_pass_with_more_than_32768_micro_batches() -> None:
    server = StoreServer("127.0.0.1", world_size=2, timeout_s=20.0)
    received: dict[int, float] = {}

    def member(rank: int) -> None:
        channels = Channels()
        store: Any = StoreClient(server.endpoint, 20.0)
        group = torch.distributed.ProcessGroupGloo(store, rank, 2, gloo_options("127.0.0.1", 20.0))
        comm = GlooComm(group, channels, "pair")
        for micro_batch in (32_767, 32_768, 40_000):
            tag, tensor = tag_of((Kind.RECV_FORWARD, 0, micro_batch)), torch.zeros(1)
            if rank == 0:
                comm.send(tensor.fill_(micro_batch), 1, tag).wait()
            else:
                comm.recv(tensor, 0, tag).wait()
                received[micro_batch] = float(tensor)
        channels.close()
        del comm, group
        store.close()

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    server.close()
    assert received == {32_767: 32_767.0, 32_768: 32_768.0, 40_000: 40_000.0}


class _Gathers:
    """A recorder that counts parameter gathers by step."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def record(self, kind: int, **fields: int) -> Any:
        if kind == Kind.ALL_GATHER and not fields.get("flags"):
            self.steps.append(fields["step"])
        return torch.no_grad()

    def name(self, seq: int, collective: int) -> None:
        pass

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        pass

    def set_generation(self, generation: int) -> None:
        pass


def _train(**train: int) -> tuple[_Gathers, list[float]]:
    settings = small_run("fp32", world_size=1)
    settings["train"].update(steps=6, **train)
    config = from_dict(RunConfig, settings)
    gathers, losses = _Gathers(), []

    class Hooks(StepHooks):
        def on_step(self, result: Any) -> None:
            losses.append(result.loss)

    session = Session(config, 0, data_factory=synthetic(config, 0), recorder=gathers)
    session.join(Groups.alone())
    session.load("init")
    session.run(Hooks())
    session.leave()
    return gathers, losses


def test_a_step_after_an_evaluation_uses_the_parameters_that_it_has_gathered() -> None:
    often, rare = _train(eval_every=2), _train(eval_every=0)
    assert often[0].steps == rare[0].steps == [*range(6), 6], "one gather per change of the weights"
    assert often[1] == rare[1]


def test_the_logits_of_one_position_are_those_of_all_without_the_others() -> None:
    part, batch = Part(tiny_model()), random_batch(tiny_model())
    head = part.chunk.head
    assert head is not None
    body = head.norm.forward(part.chunk._body(batch.tokens, None, None, None), None)
    whole = body @ head.weight.data.t()
    for position in (0, 7, 15):
        logits = part.chunk.logits(batch.tokens, position)
        torch.testing.assert_close(logits, whole[position], rtol=0, atol=1e-14)
        assert logits.shape == (2, 64)
        assert logits.untyped_storage().nbytes() == logits.nbytes, "others were computed too"


def test_an_error_of_the_store_or_of_an_operation_is_a_lost_peer_and_any_other_is_not() -> None:
    channels = Channels()

    class Broken:
        def wait(self) -> None:
            raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")

    def fail() -> None:
        raise FileNotFoundError(2, "No such file", "/mnt/store/nccl/peer")

    with pytest.raises(PeerLost, match="Connection closed"):
        channels.open("a").launch(Broken).wait()
    with pytest.raises(RuntimeError, match="No such file") as caught:
        channels.open("a").call(fail).wait()
    assert not isinstance(caught.value, PeerLost)
    server = StoreServer("127.0.0.1", world_size=2, timeout_s=20.0)
    client = StoreClient(server.endpoint, 20.0)
    server.close()
    with pytest.raises(PeerLost, match="store is gone"):
        client.get("never")
    client.close()
    with pytest.raises(PeerLost, match="store is gone"):
        channels.open("a").call(lambda: client.get("never")).wait()
    channels.close()


@pytest.mark.usefixtures("no_collections")
def test_calls_that_nobody_waits_for_are_freed_with_their_channels() -> None:
    channels = Channels()
    held = torch.zeros(3)
    reference = weakref.ref(held)
    call = channels.open("a").call(lambda held=held: held)
    del held
    while not call.done():
        pass
    channels.close()
    del call, channels
    assert reference() is None
