"""Frames arrive as they were sent, nothing is lost when several threads use a socket, and debts die with a client."""

import threading
import time

import numpy as np
import pytest
import serving_agents as agents
import zmq
from gymnasium import spaces

from palaestra.agents.agent import Call, Episode
from palaestra.runtime.client import RemoteAgent
from palaestra.runtime.multipart import readable, receive, send
from palaestra.runtime.protocol import pack
from palaestra.runtime.server import PolicyServer


@pytest.fixture
def pair():
    context = zmq.Context()
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    ours.sndhwm = theirs.rcvhwm = 1
    ours.bind("inproc://pair")
    theirs.connect("inproc://pair")
    yield ours, theirs
    context.destroy(0)


def test_frames_of_every_size_arrive_as_they_were_sent(pair):
    ours, theirs = pair
    assert not readable(theirs) and receive(theirs) is None
    frames = [b"", b"x", bytes(256), bytes(257), memoryview(np.arange(100_000)).cast("B"), b"end"]
    send(ours, frames)
    assert readable(theirs)
    assert [bytes(frame) for frame in receive(theirs)] == [bytes(frame) for frame in frames]
    assert not readable(theirs)


def test_what_finds_no_room_is_not_sent_in_part(pair):
    ours, theirs = pair
    send(ours, [b"head", b"1", b"tail"])
    send(ours, [b"head", b"2", b"tail"])
    with pytest.raises(zmq.Again):
        send(ours, [b"head", b"3", b"tail"])
    assert [receive(theirs) for _ in range(3)] == [[b"head", b"1", b"tail"], [b"head", b"2", b"tail"], None]
    assert not readable(ours)  # which also makes the socket notice that there is room again
    send(ours, [b"again"])
    assert receive(theirs) == [b"again"]


@pytest.fixture
def served():
    with PolicyServer(agents.Together(), agents.episode(), "tcp://127.0.0.1:*", warmup=False) as server:
        remote = RemoteAgent(server.bind, timeout_s=20.0)
        yield remote
        remote.close()
        assert server.counts["parts_lost"] == 0


SEEN = {"agent_pos": np.zeros(4, np.float32), "environment_state": np.zeros(7, np.float32)}


def test_no_answer_is_lost_when_many_threads_ask_through_one_socket(served):
    planned = []

    def act():
        memory = served.reset(agents.episode())
        for _ in range(100):
            planned.append(sum(len(part.actions) for part in served.plan(memory, Call(SEEN))))

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert planned == [8] * 400


def test_no_part_is_lost_when_many_plans_come_at_once(served):
    memories = [served.reset(agents.episode(seed)) for seed in range(25)]
    for _ in range(20):
        planned = [0] * 25
        for lane, part in served.plan_many([(memory, Call(SEEN)) for memory in memories]):
            planned[lane] += len(part.actions)
        assert planned == [8] * 25


def test_a_client_that_hangs_up_while_it_is_owed_answers_takes_nobody_with_it():
    wide = spaces.Box(-np.arange(1.0, 100_001), np.arange(1.0, 100_001), dtype=np.float64)  # its bounds fill a queue
    space, actions = agents.world()
    episode = Episode(0, "wide", spaces.Dict({**space.spaces, "wide": wide}), actions)
    with PolicyServer(agents.Chunks(), episode, "tcp://127.0.0.1:*", warmup=False) as server:
        rude: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
        rude.linger = 0
        rude.connect(server.bind)
        rude.send_multipart(pack(b"H", {"proto": 1, "client": "rude", "token": None}))
        for _ in range(200):
            rude.send_multipart(pack(b"D", {}))
        until = time.monotonic() + 20
        while not server._owing and time.monotonic() < until:
            time.sleep(0.01)
        assert server._owing, "the client does not read, so it is owed answers"
        rude.close()
        until = time.monotonic() + 20
        while server._owing and time.monotonic() < until:
            time.sleep(0.01)
        remote = RemoteAgent(server.bind)
        memory = remote.reset(agents.episode())
        assert sum(len(part.actions) for part in remote.plan(memory, Call(SEEN))) == 8
        remote.close()
