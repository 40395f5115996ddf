"""An agent behind a socket is the same agent, and nothing that happens to the socket harms anybody else."""

import gc
import itertools
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import serving_agents as agents
import zmq
from serving_agents import episode

from palaestra.agents.agent import ActionPart, Call, Transition
from palaestra.runtime import protocol
from palaestra.runtime.client import RemoteAgent
from palaestra.runtime.clock import Wall
from palaestra.runtime.connection import Connection, Inbox, ServerLost
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.frame_codec import Limits, WireError
from palaestra.runtime.keys import ClientKeys, ServerKeys, new_key
from palaestra.runtime.protocol import describe_episode, pack, unpack
from palaestra.runtime.registry import make_agent, make_env
from palaestra.runtime.server import PolicyServer, ServerFailed, require_private

LOCAL = "tcp://127.0.0.1:*"
SPACE, _ = agents.world()


def observe(seed):
    space, _ = agents.world()
    space.seed(seed)
    return space.sample()


def plan(agent, memory, seed=0, **call):
    return list(agent.plan(memory, Call(observe(seed), **call)))


def same_plan(ours, theirs):
    """The same actions, extras and amount of work; parts without actions may be joined."""
    ours_final, theirs_final = ([part for part in parts if len(part.actions)] for parts in (ours, theirs))
    assert [part.start for part in ours_final] == [part.start for part in theirs_final]
    for a, b in zip(ours_final, theirs_final, strict=True):
        assert np.array_equal(a.actions, b.actions) and a.actions.dtype == b.actions.dtype
        assert a.extras == b.extras and a.replan_in == b.replan_in
    for work in ("encodes", "evaluations"):
        assert sum(getattr(part, work) for part in ours) == sum(getattr(part, work) for part in theirs)
    return True


@pytest.fixture
def serve():
    """Starts servers and remote agents, and ends them."""
    things = []

    def start(agent, **options):
        server = PolicyServer(agent, episode(), options.pop("bind", LOCAL), warmup=False, **options).start()
        things.append(server)
        return server

    def connect(server, **options):
        options.setdefault("patience_s", 5.0)
        url = server if isinstance(server, str) else server.bind
        things.append(RemoteAgent(url, **options))
        return things[-1]

    start.connect = connect
    yield start
    for thing in reversed(things):
        thing.close()


# --- the same agent ---


@pytest.mark.parametrize(
    ("name", "lanes"),
    [*itertools.product(("Chunks", "Together", "Learner", "TwoRates", "Cycles"), (1, 3)), ("favla", 1)],
)
def test_episodes_through_the_socket_are_bitwise_those_in_process(serve, name, lanes):
    world = "palaestra/GuardedWipe-v0" if name == "favla" else "palaestra/BallIntercept-v0"
    envs = [make_env(world) for _ in range(lanes)]

    class Tape:
        def reset(self, env, observation):
            self.actions = []

        def step(self, step, info):
            self.actions.append(step.action.tobytes())

        def close(self, outcome):
            assert not outcome.failed, outcome.reason

    def run(agent):
        tapes = [Tape() for _ in range(lanes)]
        lots = [
            (env, agents.Episode(seed, world, env.observation_space, env.action_space, env.unwrapped.interface, 30.0))
            for seed, env in enumerate(envs)
        ]
        outcomes = Executor(agent).run(lots, tapes)
        return [
            (t.actions, o.score, o.costs["evaluations"], o.costs["encodes"])
            for t, o in zip(tapes, outcomes, strict=True)
        ]

    make = partial(make_agent, "favla", world) if name == "favla" else agents.AGENTS[name]
    remote = serve.connect(serve(make()))
    assert remote.learns == (name == "Learner")
    assert run(remote) == run(make())


def test_committed_actions_and_parts_are_those_in_process(serve):
    local, remote = agents.Chunks(), serve.connect(serve(agents.Chunks()))
    ours, theirs = local.reset(episode(3)), remote.reset(episode(3))
    prefix = np.full((3, 2), 0.25, np.float32)
    for seed, committed in enumerate([(), prefix, prefix[:1]]):
        assert same_plan(
            plan(local, ours, seed, committed=committed, tick=9),
            plan(remote, theirs, seed, committed=committed, tick=9),
        )


def test_a_learner_is_told_every_step_between_two_plans(serve):
    local, remote = agents.Learner(), serve.connect(serve(agents.Learner()))
    ours, theirs = local.reset(episode()), remote.reset(episode())
    for agent, memory in ((local, ours), (remote, theirs)):
        plan(agent, memory, 0)
        for n in range(3):
            agent.learn(memory, Transition(observe(n), np.float32([n, 1]), 0.5, observe(n + 1), False, n == 2))
    assert same_plan(plan(local, ours, 3), plan(remote, theirs, 3))


def test_episodes_of_many_clients_do_not_mix(serve):
    server = serve(agents.Together(0.001), batch_window_ms=2.0)
    expected = {}
    for seed in range(4):
        local = agents.Together()
        memory = local.reset(episode(seed))
        expected[seed] = [plan(local, memory, seed + n) for n in range(3)]
    results = {}

    def act(seed):
        remote = serve.connect(server)
        memory = remote.reset(episode(seed))
        results[seed] = [plan(remote, memory, seed + n) for n in range(3)]

    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert all(same_plan(a, b) for seed in expected for a, b in zip(expected[seed], results[seed], strict=True))
    assert max(server.agent.met, default=1) > 1, "some plans were made together"


# --- slow and fast calls ---


def draw_of(parts):
    return float(parts[-1].extras["draw"])


def test_slow_and_fast_calls_overlap_on_one_socket(serve):
    begun, planned = threading.Event(), threading.Event()

    class Patient(agents.Cycles):
        waits = False

        def encode(self, memory, observation):
            if self.waits:
                begun.set()
                assert planned.wait(10), "no plan was made during the slow pass"
            return super().encode(memory, observation)

    agent = Patient()
    remote = serve.connect(serve(agent))
    memory = remote.reset(episode())
    first = remote.encode(memory, observe(0))
    draw = draw_of(plan(remote, memory, 0, context=first))
    agent.waits, contexts = True, []
    slow = threading.Thread(target=lambda: contexts.append(remote.encode(memory, observe(1))))
    slow.start()
    assert begun.wait(10)
    assert [draw_of(plan(remote, memory, seed, context=first)) for seed in range(3)] == [draw] * 3
    assert not contexts
    planned.set()
    slow.join(10)
    assert draw_of(plan(remote, memory, 1, context=contexts[0])) != draw, "a new cycle is noticed"


def test_a_context_that_is_gone_is_said_to_be_and_made_anew_on_request(serve):
    client = Raw(serve(agents.Cycles()).bind).begin()

    def slow(seq, **header):
        client.say(b"K", {"seq": seq, "episode": 1, **header}, {"observation": observe(seq)})
        return client.until(b"F", b"E")[-1]

    def fast(seq, **header):
        client.observe(seq, **header)
        *parts, last = client.until(b"F", b"E")
        return last.header.get("code") or sum(message.header["encodes"] for message in [*parts, last])

    assert slow(1, context=7, ttl_ms=60_000).kind == b"F"
    assert fast(2, context=7) == 0
    assert fast(3) == 1, "without a context the server encodes first"
    assert slow(4, context=8, ttl_ms=1).kind == b"F"
    time.sleep(0.01)
    client.observe(5, context=8)
    refused = client.until(b"E")[-1].header
    assert refused["code"] == "NO_CONTEXT" and "encode: true" in refused["hint"]
    assert fast(6, context=8, encode=True, ttl_ms=60_000) == 1
    assert fast(7, context=8) == fast(8, context=7) == 0
    for number in range(9, 12):
        assert slow(number, context=number).kind == b"F"
    assert fast(12, context=7) == "NO_CONTEXT", "four are kept"
    assert fast(13, context=7, encode=True) == 1 and fast(14, context=7) == 0, "made last, it is not the first to go"
    assert fast(15, context=8) == "NO_CONTEXT"
    assert slow(16, context=16, ttl_ms="long").header["code"] == "BAD_HEADER"


def test_a_remote_agent_whose_context_is_gone_goes_on_with_another(serve):
    server = serve(agents.Cycles())
    remote = serve.connect(server, ttl_s=7.0)
    memory = remote.reset(episode())
    context = remote.encode(memory, observe(0))
    (session,) = next(iter(server.clients.values())).sessions.values()
    (expires,) = (expires for _, expires in session.contexts.values())
    assert 0 < expires - time.monotonic() <= 7.0

    def encodes(seed):
        parts = plan(remote, memory, seed, context=context)
        assert sum(len(part.actions) for part in parts) == 2
        return sum(part.encodes for part in parts)

    assert encodes(0) == 0
    session.contexts.clear()
    assert encodes(1) == 1 and remote.renewed == 1
    assert encodes(2) == 0, "what was made anew is kept under the same number"
    server.close()
    serve(agents.Cycles(), bind=server.bind)
    assert encodes(3) == 1 and remote.renewed == 2 and remote.reconnects == 1
    assert encodes(4) == 0
    for ttl_s in (0.0, 1e9, float("nan")):
        with pytest.raises(ValueError, match="ttl_s="):
            RemoteAgent(server.bind, ttl_s=ttl_s)


def test_an_episode_survives_contexts_that_expire_and_a_server_that_restarts(serve):
    servers = [serve(agents.Cycles())]

    def strike():
        servers[0].close()
        servers.append(serve(agents.Cycles(), bind=servers[0].bind))

    class World(gymnasium.Env):
        observation_space, action_space = agents.world()

        def reset(self, *, seed=None, options=None):
            self.tick = 0
            return observe(0), {}

        def step(self, action):
            self.tick += 1
            if self.tick == 6:
                strike()
            if self.tick > 10:
                time.sleep(0.03)  # longer than a context lives
            return observe(self.tick), 0.0, self.tick == 16, False, {}

    remote = serve.connect(servers[0], ttl_s=0.02)
    (outcome,) = Executor(remote, execution=Execution(horizon=1)).run([(World(), episode())])
    assert not outcome.failed and outcome.ticks == 16, outcome.reason
    assert remote.reconnects == 1 and remote.renewed >= 4
    assert outcome.costs["encodes"] == 4 + remote.renewed


def test_slow_and_fast_calls_that_find_the_server_back_begin_the_episode_once(serve):
    resets = []

    class Counting(agents.Cycles):
        def reset(self, episode):
            resets.append(episode.seed)
            time.sleep(0.05)
            return super().reset(episode)

    server = serve(Counting())
    remote = serve.connect(server)
    memory = remote.reset(episode())
    context = remote.encode(memory, observe(0))
    server.close()
    serve(Counting(), bind=server.bind)
    together, results = threading.Barrier(2), []

    def call(work):
        together.wait()
        results.append(work())

    threads = [
        threading.Thread(target=call, args=(work,))
        for work in (lambda: remote.encode(memory, observe(1)), lambda: plan(remote, memory, 1, context=context))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(results) == 2 and resets == [0, 0] and remote.reconnects == 1


# --- overload, cancel, pre-empt ---


class Raw:
    """A client that says exactly what a test wants said."""

    def __init__(self, url):
        self.socket: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(url)

    def say(self, kind, header, tree=None):
        self.socket.send_multipart(pack(kind, header, tree))

    def hear(self, timeout_s=5.0):
        if not self.socket.poll(timeout_s * 1000):
            raise TimeoutError("nothing was heard")
        return unpack([f.bytes for f in self.socket.recv_multipart(copy=False)])

    def until(self, *kinds):
        heard = [self.hear()]
        while heard[-1].kind not in kinds:
            heard.append(self.hear())
        return heard

    def begin(self):
        self.say(b"H", {"proto": 1, "client": "test", "token": None})
        self.until(b"W")
        self.say(b"R", {"seq": 0, "episode": 1}, {"episode": describe_episode(episode())})
        self.until(b"F")
        return self

    def observe(self, seq, **header):
        tree = {"observation": observe(seq), "committed": []}
        self.say(b"O", {"seq": seq, "episode": 1, "tick": seq, **header}, tree)


def test_every_observation_is_answered_once_and_the_newest_wins(serve):
    client = Raw(serve(agents.Chunks(0.01)).bind).begin()
    for seq in range(1, 31):
        client.observe(seq)
        time.sleep(0.002)
    endings: dict[int, bytes] = {}
    while len(endings) < 30:
        message = client.hear()
        if message.kind != b"A":
            assert message.header["seq"] not in endings
            endings[message.header["seq"]] = message.kind
    assert set(endings) == set(range(1, 31))
    assert endings[30] == b"F", "the newest is not dropped"
    assert endings[1] == b"F", "what has begun is finished"
    assert list(endings.values()).count(b"X") > 15


def test_parts_are_contiguous_and_stamped(serve):
    client = Raw(serve(agents.Chunks()).bind).begin()
    client.observe(5)
    *parts, final = client.until(b"F")
    start = 0
    for part in parts:
        assert (part.kind, part.header["tick"], part.header["start"]) == (b"A", 5, start)
        assert part.header["count"] == len(part["actions"])
        assert part.header["t_rx_ns"] <= part.header["t_start_ns"] <= part.header["t_tx_ns"]
        start += part.header["count"]
    assert final.header["n_final"] == start == 8
    assert len(final.header["step_ms"]) == 7


def test_cancel_and_preempt_stop_between_two_steps(serve):
    agent = agents.Chunks(0.05)
    client = Raw(serve(agent).bind).begin()
    client.observe(1)
    client.until(b"A")
    client.say(b"C", {"seq": 1})
    assert client.until(b"X")[-1].header["reason"] == "cancelled"
    preempting = Raw(serve(agents.Chunks(0.05), preempt=True).bind).begin()
    preempting.observe(1)
    preempting.until(b"A")
    preempting.observe(2)
    assert preempting.until(b"X")[-1].header == {"seq": 1, "episode": 1, "reason": "superseded"}
    assert preempting.until(b"F")[-1].header["seq"] == 2


def test_a_reader_that_stops_early_stops_the_agent(serve):
    server = serve(agents.Chunks(0.05))
    remote = serve.connect(server)
    memory = remote.reset(episode())
    for part in remote.plan(memory, Call(observe(0))):
        if len(part.actions):
            break
    began = time.monotonic()
    assert plan(remote, memory, 1)
    assert time.monotonic() - began < 0.05 * 11, "the six steps of the first plan were not all made"


def test_an_observation_that_waited_too_long_is_late(serve):
    client = Raw(serve(agents.Chunks(0.05)).bind).begin()
    other = Raw(client.socket.last_endpoint.decode()).begin()
    client.observe(1)
    client.until(b"A")
    other.observe(1, deadline_ms=1)
    assert other.until(b"X")[-1].header["reason"] == "late"


# --- who may come in, and what is refused ---


def test_an_open_address_needs_keys_or_a_word():
    for bind in ("tcp://*:5600", "tcp://0.0.0.0:5600", "tcp://[::]:5600", "tcp://eth0:5600", "tcp://192.168.0.9:1"):
        with pytest.raises(ValueError, match="other machines"):
            require_private(bind, secured=False, insecure=False)
        require_private(bind, secured=True, insecure=False)
        require_private(bind, secured=False, insecure=True)
    for bind in ("tcp://127.0.0.1:5600", "tcp://[::1]:5600", "tcp://localhost:1", "ipc:///tmp/x", "inproc://x"):
        require_private(bind, secured=False, insecure=False)
    with pytest.raises(ValueError, match="not an endpoint"):
        require_private("127.0.0.1:5600", secured=False, insecure=False)


def test_privileged_agents_are_not_served():
    class Cheat(agents.Chunks):
        privileged = True

    with pytest.raises(ValueError, match="simulator's state"):
        PolicyServer(Cheat(), episode(), LOCAL)


def test_a_taken_address_is_named(serve):
    first = serve(agents.Chunks())
    with pytest.raises(OSError, match=first.bind):
        serve(agents.Chunks(), bind=first.bind)


def test_curve_lets_in_whom_it_knows_and_nobody_else(serve, tmp_path):
    for name in ("server", "friend", "stranger"):
        _, secret = new_key(tmp_path / name)
        assert secret.stat().st_mode & 0o077 == 0
        with pytest.raises(ValueError, match="already"):
            new_key(tmp_path / name)
    server = serve(agents.Chunks(), keys=ServerKeys.read(tmp_path / "server.key_secret", [tmp_path / "friend.key"]))

    def keys(name):
        return {"key": tmp_path / f"{name}.key_secret", "server_key": tmp_path / "server.key"}

    friend = serve.connect(server, **keys("friend"))
    assert plan(friend, friend.reset(episode()))
    for options in (keys("stranger"), {}, {**keys("friend"), "server_key": tmp_path / "friend.key"}):
        with pytest.raises(ServerLost, match="both keys right"):
            RemoteAgent(server.bind, patience_s=0.7, **options)
    assert plan(friend, friend.reset(episode())), "the others did no harm"
    with pytest.raises(ValueError, match="public key"):
        ClientKeys.read(tmp_path / "friend.key", tmp_path / "server.key")


def test_the_token_is_checked(serve):
    server = serve(agents.Chunks(), token="sesame")
    remote = serve.connect(server, token="sesame")
    assert plan(remote, remote.reset(episode()))
    for token in (None, "sesam", "sesame\0"):
        with pytest.raises(WireError, match="UNAUTHORIZED"):
            RemoteAgent(server.bind, token=token)


def test_what_is_wrong_is_named_and_the_connection_survives(serve):
    server = serve(agents.Chunks())
    client = Raw(server.bind)

    def refused(kind, header, tree=None):
        client.say(kind, header, tree)
        return client.until(b"E")[-1].header["code"]

    good = {"observation": observe(0), "committed": []}
    assert refused(b"O", {"seq": 1, "episode": 1, "tick": 0}, good) == "NO_HELLO"
    assert refused(b"H", {"proto": 2}) == "BAD_VERSION"
    client.begin()
    assert refused(b"Z", {}) == "UNKNOWN_TYPE"
    assert refused(b"O", {"seq": 1, "episode": 9, "tick": 0}, good) == "NO_EPISODE"
    assert refused(b"O", {"seq": -1, "episode": 1, "tick": 0}, good) == "BAD_HEADER"
    assert refused(b"O", {"seq": 2, "episode": 1, "tick": 0, "context": 5}, good) == "NO_CONTEXT"
    assert refused(b"O", {"seq": 3, "episode": 1, "tick": 0}, {"observation": {}, "committed": []}) == "BAD_SCHEMA"
    assert refused(b"R", {"seq": 4, "episode": 2}, {"episode": {"seed": 1}}) == "BAD_HEADER"
    assert refused(b"K", {"seq": 5, "episode": 1, "context": 1}, good) == "UNKNOWN_TYPE"
    client.socket.send_multipart([b"EVS9", b"O", b""])
    assert client.until(b"E")[-1].header["code"] == "BAD_MAGIC"
    wrong = {"observation": {**observe(0), "agent_pos": np.zeros(3)}, "committed": []}
    client.say(b"O", {"seq": 6, "episode": 1, "tick": 0}, wrong)
    message = client.until(b"E")[-1].header["message"]
    assert message == "observation/agent_pos: got float64 [3], expected float32 [4]"
    client.observe(7)
    assert client.until(b"F")[-1].header["seq"] == 7


def test_what_is_too_large_is_refused_before_it_is_sent_and_after(serve):
    server = serve(agents.Chunks(), limits=Limits(bytes=100_000))
    remote = serve.connect(server)
    memory = remote.reset(episode())
    with pytest.raises(WireError, match="TOO_LARGE"):
        list(remote.plan(memory, Call({"agent_pos": np.zeros(30_000)})))
    rude = Raw(server.bind).begin()
    rude.say(b"O", {"seq": 1, "episode": 1, "tick": 0}, {"observation": np.zeros(30_000), "committed": []})
    with pytest.raises(TimeoutError):
        rude.hear(0.3)  # libzmq drops the frame and the connection, and says nothing
    assert plan(remote, memory), "others are not affected"


# --- faults ---


def test_an_agent_that_fails_is_named_and_the_client_goes_on(serve):
    server = serve(agents.Faulty(), hang_s=0.3)
    remote, other = serve.connect(server, timeout_s=3.0), serve.connect(server)
    with pytest.raises(WireError, match="not mine"):
        remote.reset(episode(instruction="refuse"))
    for habit, said in (("raise", "RuntimeError: the network is on fire"), ("nan", "not finite"), ("hang", "HUNG")):
        memory = remote.reset(episode(instruction=habit))
        with pytest.raises(WireError, match=said):
            plan(remote, memory)
    time.sleep(1.5)
    for agent in (remote, other):
        assert plan(agent, agent.reset(episode()))


def test_a_bad_request_does_not_fail_those_planned_with_it(serve):
    class Strict(agents.Together):
        def plan_many(self, jobs):
            if any(memory["noise"] is None for memory, _ in jobs):
                raise ValueError("a bad one is among them")
            yield from super().plan_many(jobs)

        def plan(self, memory, call):
            if memory["noise"] is None:
                raise ValueError("a bad one")
            return super().plan(memory, call)

        def reset(self, episode):
            return {**super().reset(episode), **({"noise": None} if episode.seed == 1 else {})}

    remote = serve.connect(serve(Strict(), batch_window_ms=20.0))
    memories = [remote.reset(episode(seed)) for seed in range(3)]
    inbox: Inbox = queue.SimpleQueue()
    for memory in memories:
        remote.connection.request(b"O", *remote._observation(memory, Call(observe(0))), inbox)
    endings: list[bytes] = []
    while len(endings) < 3:
        _, message = inbox.get(timeout=5)
        if message.kind != b"A":
            endings.append(message.kind)
    assert sorted(endings) == [b"E", b"F", b"F"]


def spawn(name, url, step_s="0"):
    process = subprocess.Popen(
        [sys.executable, agents.__file__, name, url, step_s],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(agents.__file__).parent,
    )
    bound = process.stdout.readline().strip()
    assert bound, "the server did not start"
    return process, bound


def test_a_server_that_is_killed_is_found_again(serve):
    process, url = spawn("Chunks", LOCAL, "0.05")
    try:
        remote = serve.connect(url, patience_s=60.0)
        memory = remote.reset(episode(4))
        stream = remote.plan(memory, Call(observe(0)))
        assert len(next(stream).actions)
        process.send_signal(signal.SIGKILL)
        process.wait()
        began = time.monotonic()
        assert sum(len(part.actions) for part in stream) < 8, "the plan ends with what had arrived"
        assert time.monotonic() - began < 4.0, "and is noticed to be over"
        process, _ = spawn("Chunks", url)
        began = time.monotonic()
        local = agents.Chunks()
        assert same_plan(plan(remote, memory, 1), plan(local, local.reset(episode(4)), 1))
        assert time.monotonic() - began < 4.0
        assert remote.reconnects == 1
    finally:
        process.kill()


class Patient(gymnasium.Env):
    """Calls ``strike`` at tick 10, and is over once ten planned actions have come after a pause."""

    observation_space, action_space = agents.world()

    def __init__(self, strike):
        self.strike = strike

    def reset(self, *, seed=None, options=None):
        self.moves = []
        return observe(0), {}

    def step(self, action):
        self.moves.append(bool(np.any(action)))
        if len(self.moves) == 10:
            self.strike()
        after_the_pause = self.moves[self.moves.index(False, 10) :] if False in self.moves[10:] else []
        return observe(len(self.moves)), 0.0, sum(after_the_pause) >= 10, False, {"success": True}


@pytest.mark.parametrize("name", ["Chunks", "Cycles"])
def test_a_robot_holds_while_its_server_is_gone_and_goes_on_after(serve, name):
    servers = [spawn(name, LOCAL, "0.01")]
    remote = serve.connect(servers[0][1], patience_s=30.0)

    def strike():
        servers[0][0].kill()
        servers[0][0].wait()
        threading.Thread(target=lambda: servers.append(spawn(name, servers[0][1], "0.01"))).start()

    world = Patient(strike)
    try:
        execution = Execution(mode="async", horizon=4, hold="zero", max_ticks=600)
        (outcome,) = Executor(remote, Wall(), execution).run([(world, episode(2))])
    finally:
        for process, _ in servers:
            process.kill()
    assert not outcome.failed, outcome.reason
    assert outcome.costs["stalls"] > 5
    assert sum(world.moves[:10]) > (5 if name == "Chunks" else 0), "before, it moved"
    assert remote.reconnects == 1


def test_a_plan_waits_for_a_server_that_is_gone_but_not_for_ever(serve):
    server = serve(agents.Chunks())
    remote = serve.connect(server, patience_s=0.5)
    memory = remote.reset(episode())
    server.close()
    began = time.monotonic()
    with pytest.raises(ServerLost):
        plan(remote, memory)
    assert time.monotonic() - began < 5.0


def test_a_client_that_is_killed_is_forgotten(serve):
    server = serve(agents.Chunks(), client_timeout_s=1.0)
    code = (
        "import serving_agents as a, time, os; from palaestra.runtime.client import RemoteAgent;"
        f"r = RemoteAgent({server.bind!r}); m = r.reset(a.episode()); print('here', flush=True); time.sleep(60)"
    )
    path = Path(agents.__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(path)}, cwd=path
    )
    assert process.stdout.readline() == b"here\n"
    (client,) = server.clients.values()
    assert len(client.sessions) == 1
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5.0
    while server.clients and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.clients


def test_a_memory_that_is_dropped_is_forgotten_by_the_server(serve):
    server = serve(agents.Chunks())
    remote = serve.connect(server)
    memories = [remote.reset(episode(n)) for n in range(5)]
    (client,) = server.clients.values()
    assert len(client.sessions) == 5
    del memories[1:]
    gc.collect()
    deadline = time.monotonic() + 3.0
    while len(client.sessions) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(client.sessions) == 1


class Proxy(threading.Thread):
    """Stands between a client and a server, and does to messages what a bad network does."""

    def __init__(self, url, seed=0, drop=0.0, delay_s=0.0):
        super().__init__(daemon=True)
        self.draw, self.drop, self.delay_s, self.stopped = random.Random(seed), drop, delay_s, False
        context: zmq.Context = zmq.Context.instance()
        self.front, self.back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for end in (self.front, self.back):
            end.linger = 0
        port = self.front.bind_to_random_port("tcp://127.0.0.1")
        self.back.connect(url)
        self.url = f"tcp://127.0.0.1:{port}"
        self.start()

    def run(self):
        waiting, client = [], b""
        while not self.stopped:
            for end in (self.front, self.back):
                while end.poll(0):
                    frames = end.recv_multipart()
                    if end is self.front:
                        client, *frames = frames
                    if self.draw.random() >= self.drop:
                        waiting.append((time.monotonic() + self.draw.random() * self.delay_s, end is self.back, frames))
            now = time.monotonic()
            for item in sorted(waiting, key=lambda item: item[0]):
                if item[0] <= now:
                    waiting.remove(item)
                    (self.front.send_multipart([client, *item[2]]) if item[1] else self.back.send_multipart(item[2]))
            time.sleep(0.001)
        self.front.close()
        self.back.close()


def test_a_network_that_drops_delays_and_reorders_gives_right_actions_or_an_error(serve):
    class Still(agents.Chunks):
        def reset(self, episode):
            return {**super().reset(episode), "seed": episode.seed}

        def plan(self, memory, call):
            memory["noise"] = np.random.default_rng(memory["seed"])
            return super().plan(memory, call)

    server = serve(Still())
    proxy = Proxy(server.bind, drop=0.0, delay_s=0.02)
    try:
        remote = serve.connect(proxy.url, timeout_s=0.4)
        memory = remote.reset(episode(2))
        local = Still()
        proxy.drop = 0.05
        complete = 0
        for seed in range(30):
            truth = np.concatenate([p.actions for p in plan(local, local.reset(episode(2)), seed) if len(p.actions)])
            try:
                parts = plan(remote, memory, seed)
            except (WireError, ServerLost):
                continue  # a named error, in bounded time
            for part in parts:
                actions = truth[part.start : part.start + len(part.actions)]
                assert np.array_equal(part.actions, actions) or not len(part.actions)
            complete += sum(len(part.actions) for part in parts) == 8
        assert complete, "of some plans everything came before their end"
        proxy.drop = proxy.delay_s = 0.0
        deadline = time.monotonic() + 8.0
        while time.monotonic() < deadline:
            try:
                assert plan(remote, memory)
                break
            except (WireError, ServerLost):
                pass
        else:
            pytest.fail("the client did not recover")
    finally:
        proxy.stopped = True
        proxy.join()


class Cable(threading.Thread):
    """A TCP line that can be cut without either end being told."""

    def __init__(self, url):
        super().__init__(daemon=True)
        host, port = url.removeprefix("tcp://").split(":")
        self.target, self.cut, self.stopped = (host, int(port)), False, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.start()

    def run(self):
        self.listener.settimeout(0.05)
        while not self.stopped:
            try:
                near, _ = self.listener.accept()
            except TimeoutError:
                continue
            far = socket.create_connection(self.target)
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()
        self.listener.close()

    def pump(self, source, sink):
        try:
            while data := source.recv(65536):
                if not self.cut:
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()


def test_a_cable_that_is_cut_and_mended(serve):
    server = serve(agents.Chunks())
    cable = Cable(server.bind)
    try:
        remote = serve.connect(cable.url, patience_s=10.0)
        memory = remote.reset(episode())
        assert plan(remote, memory)
        cable.cut = True
        threading.Timer(2.5, setattr, (cable, "cut", False)).start()
        began = time.monotonic()
        assert plan(remote, memory), "the plan waits for the network"
        assert 1.0 < time.monotonic() - began < 8.0
        assert remote.reconnects == 1
    finally:
        cable.stopped = True
        cable.join()


def test_a_slow_reader_loses_parts_but_no_endings_and_holds_nobody_up(serve):
    class Large(agents.Chunks):
        def plan(self, memory, call):
            for part in super().plan(memory, call):
                yield agents.ActionPart(part.start, part.actions, extras={"imagined": np.zeros(1 << 20, np.uint8)})

    server = serve(Large())
    slow = Raw(server.bind)
    slow.socket.rcvhwm = 2
    slow.begin()
    other = serve.connect(server)
    memory = other.reset(episode())
    began = time.monotonic()
    for seq in range(1, 25):
        slow.observe(seq)
        assert plan(other, memory)
    assert time.monotonic() - began < 20.0
    assert server.counts["parts_lost"] > 0
    endings: set[int] = set()
    while len(endings) < 24:
        message = slow.hear()
        if message.kind in (b"F", b"X"):
            endings.add(message.header["seq"])
    assert not server._lost


def test_the_clock_of_the_server_is_known_within_its_error(serve):
    remote = serve.connect(serve(agents.Chunks()))
    deadline = time.monotonic() + 5.0
    while not remote.connection.clock_error_ns and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 0 < remote.connection.clock_error_ns < 1_000_000_000
    assert abs(remote.connection.clock_offset_ns) <= remote.connection.clock_error_ns, "one machine, one clock"


def test_a_client_that_floods_and_hangs_up_does_not_take_the_server_with_it(serve, monkeypatch):
    server = serve(agents.Chunks())
    receive = server._receive

    def slowly():
        time.sleep(0.005)
        return receive()

    monkeypatch.setattr(server, "_receive", slowly)
    context: zmq.Context = zmq.Context()
    rude = context.socket(zmq.DEALER)
    rude.connect(server.bind)
    for _ in range(3000):
        rude.send_multipart([b"EVS1", b"Z", bytes(2000)])
    time.sleep(0.2)
    context.destroy(0)
    time.sleep(1.5)  # with ZMTP heartbeats libzmq aborts the process here
    monkeypatch.undo()
    remote = serve.connect(server)
    assert plan(remote, remote.reset(episode()))


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_messages_on_the_socket_harm_nobody_else(serve, count):
    import resource

    server = serve(agents.Chunks())
    good = serve.connect(server)
    memory = good.reset(episode())
    draw = random.Random(1)
    originals = [
        pack(b"H", {"proto": 1, "client": "x", "token": None}),
        pack(b"R", {"seq": 1, "episode": 1}, {"episode": describe_episode(episode())}),
        pack(b"O", {"seq": 2, "episode": 1, "tick": 0}, {"observation": observe(0), "committed": []}),
        pack(b"P", {"t0": 1}),
        [b"", b"\x81\xa8endpoint\xa4ping"],
    ]
    rude = Raw(server.bind).begin()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in range(count):
        frames = [bytearray(bytes(frame)) for frame in draw.choice(originals)]
        victim = draw.choice(frames)
        for _ in range(draw.randint(1, 3)):
            victim[draw.randrange(len(victim) + 1) :][:1] = b""
            at = draw.randrange(len(victim) + 1)
            victim[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        rude.socket.send_multipart([bytes(frame) for frame in frames])
        while rude.socket.poll(0):
            rude.socket.recv_multipart()
        if n % 100 == 0:
            assert plan(good, memory)
    assert plan(good, memory)
    assert server._thread.is_alive()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "in KiB"


def test_closing_answers_what_is_open_and_leaves_no_thread(serve):
    before = set(threading.enumerate())
    server = serve(agents.Chunks(0.2))
    client = Raw(server.bind).begin()
    client.observe(1)
    client.until(b"A")
    server.close()
    assert client.until(b"E")[-1].header["code"] == "SHUTTING_DOWN"
    deadline = time.monotonic() + 3.0
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [thread for thread in left if thread.name.startswith("palaestra")]


def test_every_code_that_is_raised_is_listed():
    import re

    source = "".join(path.read_text() for path in Path(protocol.__file__).parent.rglob("*.py"))
    raised = set(re.findall(r'WireError\(\s*"([A-Z_]+)"', source))
    assert raised <= set(protocol.CODES) == set(protocol.ADVICE)


def test_the_command_serves_until_it_is_stopped(tmp_path):
    code = "import typer; from palaestra.runtime.cli.serve import serve; typer.run(serve)"
    world = "palaestra/BallIntercept-v0"
    command = [sys.executable, "-c", code, "zero", "--env", world, "--bind", LOCAL, "--openpi", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        served = json.loads(process.stdout.readline())
        assert served["openpi"].startswith("ws://127.0.0.1:")
        agent = make_agent(f"palaestra.runtime.client:RemoteAgent:url={served['url']}", world)
        env = make_env(world)
        outcome = Executor(agent).run(
            [(env, agents.Episode(0, world, env.observation_space, env.action_space, control_hz=30.0))]
        )[0]
        assert not outcome.failed
        agent.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
    keys = subprocess.run([sys.executable, "-c", code, "--new-key", str(tmp_path / "robot")], check=True)
    assert keys.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"robot.key", "robot.key_secret"}


def test_a_connection_to_nothing_says_so():
    with pytest.raises(ServerLost, match="is the server running"):
        Connection("tcp://127.0.0.1:9", connect_s=0.3)
    with pytest.raises(ValueError, match="not an endpoint"):
        Connection("localhost")


# --- what an agent may do to those who share its server ---


class Whims(agents.Chunks):
    """Does what its next whim says, and plans well otherwise."""

    whims: list = []

    def plan(self, memory, call):
        whim = self.whims.pop() if self.whims else None
        if isinstance(whim, BaseException):
            raise whim
        while whim == "endless":
            yield ActionPart(evaluations=1)
        yield from super().plan(memory, call)


@pytest.mark.parametrize(
    ("whim", "says"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        ("endless", "the plan has not ended after 10000 evaluations"),
    ],
)
def test_an_agent_that_exits_or_never_ends_fails_that_plan_and_no_other(serve, whim, says):
    server = serve(Whims())
    ours, theirs = serve.connect(server), serve.connect(server)
    memories = [remote.reset(episode()) for remote in (ours, theirs)]
    Whims.whims = [whim]
    with pytest.raises(WireError, match=f"POLICY_FAILED.*{says}"):
        plan(ours, memories[0])
    assert plan(ours, memories[0], 1) and plan(theirs, memories[1], 1), "the server goes on"


def test_an_agent_that_fails_at_once_is_not_served():
    Whims.whims = [ValueError("no motor")]
    with pytest.raises(ServerFailed, match="Whims fails on a sample observation, ValueError: no motor; mend it first"):
        PolicyServer(Whims(), episode(), LOCAL)


@pytest.mark.parametrize("other", ["another agent", "another world"])
def test_a_server_that_comes_back_as_another_is_not_obeyed(serve, tmp_path, other):
    """Also where it was away between two episodes, which is when nobody waits for it."""
    bind = f"ipc://{tmp_path}/agent"
    first = serve(agents.Chunks(), bind=bind)
    remote = serve.connect(first)
    memory = remote.reset(episode())
    assert plan(remote, memory)
    first.close()
    agent = agents.Together() if other == "another agent" else agents.Chunks()
    where = episode() if other == "another agent" else replace(episode(), env_id="test/Elsewhere-v0")
    second = PolicyServer(agent, where, bind, warmup=False).start()
    try:
        with pytest.raises(ServerLost, match="came back with another agent"):
            remote.reset(episode())
        assert remote.reconnects == 0
    finally:
        second.close()
    before = remote.connection.generation
    serve(agents.Chunks(), bind=bind)
    while remote.connection.generation == before:
        time.sleep(0.01)
    assert plan(remote, remote.reset(episode())), "the one that it knows is obeyed again"
    assert remote.reconnects == 1


@pytest.mark.parametrize("bind", [f"tcp://127.0.0.1{port}" for port in (":99999", "", ":abc")])
def test_a_port_that_is_none_is_refused(bind):
    with pytest.raises(ValueError, match="expected 0 to 65535"):
        PolicyServer(agents.Chunks(), episode(), bind, warmup=False)
