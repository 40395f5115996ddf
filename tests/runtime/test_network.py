"""What a bad network and bad clients do to whoever serves and whoever drives: beside test_server and test_fronts."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
import serving_agents as agents
import zmq
from serving_agents import Chunks, episode

from palaestra.agents.agent import ActionPart, Call, Episode
from palaestra.runtime.client import RemoteAgent
from palaestra.runtime.clock import Wall
from palaestra.runtime.executor import Execution, Executor
from palaestra.runtime.frame_codec import Limits, WireError
from palaestra.runtime.fronts import openpi as dialect
from palaestra.runtime.fronts.openpi import OpenpiServer
from palaestra.runtime.keys import new_key
from palaestra.runtime.robots.as_env import as_env
from palaestra.runtime.robots.example_arm import ExampleArm
from palaestra.runtime.robots.watchdog import Watchdog
from palaestra.runtime.server import PolicyServer

LOCAL = "tcp://127.0.0.1:*"
HERE = Path(agents.__file__).parent


def observe(seed=0):
    space, _ = agents.world()
    space.seed(seed)
    return space.sample()


def plan(agent, memory, seed=0):
    return list(agent.plan(memory, Call(observe(seed))))


def actions_in(parts):
    return sum(len(part.actions) for part in parts)


def within(seconds, true):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


# --- two machines and a network between them ---


class Machines:
    """Two machines and a router, each a network namespace; the router can lose everything without telling anybody."""

    def __init__(self):
        self.name = f"plst{os.getpid()}"
        self.robot, self.gpu, self.router = (self.name + end for end in "abr")
        try:
            for namespace in (self.robot, self.gpu, self.router):
                self._ip("netns", "add", namespace)
                self._ip("-n", namespace, "link", "set", "lo", "up")
            for wire, namespace in enumerate((self.robot, self.gpu)):
                self._ip(
                    "link", "add", "wire", "netns", namespace, "type", "veth", "peer", f"w{wire}", "netns", self.router
                )
                self._ip("-n", namespace, "addr", "add", f"10.77.{wire}.2/24", "dev", "wire")
                self._ip("-n", self.router, "addr", "add", f"10.77.{wire}.1/24", "dev", f"w{wire}")
                self._ip("-n", namespace, "link", "set", "wire", "up")
                self._ip("-n", self.router, "link", "set", f"w{wire}", "up")
                self._ip("-n", namespace, "route", "add", "default", "via", f"10.77.{wire}.1")
            forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
            subprocess.run(["ip", "netns", "exec", self.router, "sh", "-c", forward], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            reason = getattr(error, "stderr", b"") or str(error).encode()
            pytest.skip(f"network namespaces cannot be made here: {reason.decode().strip()}")

    def _ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def cut(self):
        self._ip("-n", self.router, "route", "add", "blackhole", "10.77.1.2/32")

    def mend(self):
        self._ip("-n", self.router, "route", "del", "blackhole", "10.77.1.2/32")

    def start(self, namespace, code, *arguments):
        """A Python process on that machine; what it prints can be read line by line."""
        return subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, "-u", "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )

    def close(self):
        for namespace in (self.robot, self.gpu, self.router):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


SERVES = """
import sys, time, serving_agents as a
from palaestra.runtime.keys import ServerKeys
from palaestra.runtime.server import PolicyServer
url, own, allowed = sys.argv[1:]
with PolicyServer(a.Chunks(0.005), a.episode(), url, warmup=False, keys=ServerKeys.read(own, [allowed])):
    print("here")
    time.sleep(600)
"""

DRIVES = """
import sys, time, gymnasium, numpy as np, serving_agents as a
from palaestra.runtime.client import RemoteAgent
from palaestra.runtime.clock import Wall
from palaestra.runtime.executor import Execution, Executor

class World(gymnasium.Env):
    observation_space, action_space = a.world()
    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}
    def step(self, action):
        print(time.monotonic(), int(bool(np.any(action))))  # whether it moves
        return self.observation_space.sample(), 0.0, False, False, {}

url, own, server = sys.argv[1:]
remote = RemoteAgent(url, key=own, server_key=server, patience_s=60.0, max_age_s=0.5)
execution = Execution(mode="async", horizon=4, hold="zero", max_ticks=3000)
print(Executor(remote, Wall(), execution).run([(World(), a.episode(2))]))
"""


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_network_that_is_cut_between_two_machines_and_mended(tmp_path, seconds):
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command to make network namespaces with")
    keys = {}
    for who in ("robot", "gpu"):
        keys[who], keys[who + "_secret"] = new_key(tmp_path / who)
    machines, processes, ticks = Machines(), [], []
    try:
        processes.append(
            machines.start(machines.gpu, SERVES, "tcp://10.77.1.2:5600", keys["gpu_secret"], keys["robot"])
        )
        assert processes[0].stdout.readline() == "here\n"
        url, own = "tcp://10.77.1.2:5600", keys["robot_secret"]
        processes.append(machines.start(machines.robot, DRIVES, url, own, keys["gpu"]))

        def read():
            for line in processes[1].stdout:
                ticks.append(tuple(map(float, line.split())))

        threading.Thread(target=read, daemon=True).start()
        within(60, lambda: sum(moved for _, moved in ticks) > 30)
        cut = time.monotonic()
        machines.cut()
        time.sleep(seconds)
        mended = time.monotonic()
        machines.mend()
        within(60, lambda: sum(moved for at, moved in ticks if at > mended) > 30)
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
        machines.close()
    dark = [moved for at, moved in ticks if cut + 1.0 < at < mended]
    assert len(dark) > 15 * (seconds - 1), "the loop keeps its ticks"
    assert not any(dark), "what was planned before has run out, and nothing else is done"
    back = next(at for at, moved in ticks if at > mended and moved) - mended
    print(f"found again {back:.2f} s after the network was")
    assert back < 8.0


# --- a server that goes away ---


def test_a_server_that_restarts_between_two_plans_is_no_error():
    with PolicyServer(Chunks(), episode(), LOCAL, warmup=False) as server:
        remote = RemoteAgent(server.bind, patience_s=20.0)
        memory = remote.reset(episode(3))
        assert actions_in(plan(remote, memory)) == 8
    with PolicyServer(Chunks(), episode(), server.bind, warmup=False):
        within(20, lambda: remote.connection.generation == 2)
        local = Chunks()
        theirs, ours = plan(remote, memory, 1), plan(local, local.reset(episode(3)), 1)
        assert np.array_equal(theirs[0].actions, ours[1].actions), "the episode began anew on the new server"
        assert remote.reconnects == 1
    remote.close()


def test_an_observation_that_waited_for_a_server_is_not_planned_on_when_it_is_stale():
    class Seen(Chunks):
        observations: list = []

        def plan(self, memory, call):
            self.observations.append(float(call.observation["agent_pos"][0]))
            return super().plan(memory, call)

    with PolicyServer(Seen(), episode(), LOCAL, warmup=False) as server:
        remote = RemoteAgent(server.bind, patience_s=20.0, max_age_s=0.3)
        memory = remote.reset(episode())
        assert actions_in(plan(remote, memory)) == 8
    within(20, lambda: remote.connection.state != "READY")
    returned = []

    def come_back():
        time.sleep(0.5)
        returned.append(PolicyServer(Seen(), episode(), server.bind, warmup=False).start())

    threading.Thread(target=come_back).start()
    try:
        assert plan(remote, memory, 1) == [] and remote.stale == 1, "the plan ends without actions"
        assert actions_in(plan(remote, memory, 2)) == 8, "and whoever asks again gets one"
        seen = [float(observe(seed)["agent_pos"][0]) for seed in (0, 2)]
        assert Seen.observations == seen, "the stale one never reached the agent"
    finally:
        remote.close()
        returned[0].close()
    with pytest.raises(ValueError, match="max_age_s=0"):
        RemoteAgent(server.bind, max_age_s=0)


def test_an_observation_that_was_long_on_its_way_is_stale_too():
    """A server that stands still for a second (or a network that does) is not lost, but what it is sent grows old."""
    command = [sys.executable, agents.__file__, "Chunks", LOCAL, "0.001"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE)
    remote = None
    try:
        remote = RemoteAgent(process.stdout.readline().strip(), max_age_s=0.4)
        memory = remote.reset(episode())
        within(5, lambda: remote.connection.clock_error_ns > 0)
        assert actions_in(plan(remote, memory)) == 8
        process.send_signal(signal.SIGSTOP)
        threading.Timer(0.9, process.send_signal, (signal.SIGCONT,)).start()
        assert plan(remote, memory, 1) == [] and remote.stale == 1
        assert actions_in(plan(remote, memory, 2)) == 8 and remote.reconnects == 0
    finally:
        process.kill()
        process.wait()
        if remote:
            remote.close()


# --- an agent that fails while a robot moves ---


class Turncoat(Chunks):
    """Plans well twice, then does what the instruction says."""

    def reset(self, episode):
        return {**super().reset(episode), "habit": episode.instruction, "plans": 0}

    def plan(self, memory, call):
        memory["plans"] += 1
        if memory["plans"] > 2 and memory["habit"] == "hang":
            time.sleep(2.0)
        if memory["plans"] > 2 and memory["habit"] == "raise":
            raise RuntimeError("the network is on fire")
        value = np.nan if memory["plans"] > 2 and memory["habit"] == "nan" else 0.5
        yield ActionPart(0, np.full((8, 3), value, np.float32), evaluations=1, replan_in=4)


@pytest.mark.parametrize(("habit", "said"), [("raise", "on fire"), ("nan", "not finite"), ("hang", "POLICY_HUNG")])
def test_the_robot_holds_when_its_agent_fails(habit, said):
    told: list[str] = []
    watchdog = Watchdog(ExampleArm(), tell=told.append)
    env = as_env(watchdog)
    job = Episode(0, "arm", env.observation_space, env.action_space, env.interface, 50.0, instruction=habit)
    with PolicyServer(Turncoat(), job, LOCAL, warmup=False, hang_s=0.3) as server:
        remote = RemoteAgent(server.bind)
        (outcome,) = Executor(remote, Wall(), Execution(mode="async", hold="decelerate")).run([(env, job)])
        remote.close()
    assert outcome.failed and said in str(outcome.reason) and outcome.ticks >= 4
    assert watchdog.observe().observation["agent_pos"][0] > 0.01, "it has moved"
    time.sleep(watchdog.deadline_s + 0.5)
    assert np.abs(watchdog.observe().observation["agent_pos"][3:]).max() < 1e-3, "and stands"
    env.close()


def test_strangers_are_told_that_an_agent_hangs():
    """A second of silence is an error for clients that know no heartbeats too, and the next request is served."""
    faulty = PolicyServer(agents.Faulty(), SMALL, LOCAL, warmup=False, hang_s=0.3)
    with faulty as server, OpenpiServer(server, port=0) as front:
        stranger = Openpi(server, front)
        stranger.socket.send(dialect.encode({**observe(), "prompt": "hang"}))
        answer = stranger.socket.recv(timeout=5)
        assert isinstance(answer, str) and "at one step" in answer
        groot = Groot(server, front)
        time.sleep(1.5)
        assert groot.works() and Openpi(server, front).works()


# --- bad clients, in every dialect ---


SMALL = episode()


def groot_array(value):
    import io

    stream = io.BytesIO()
    np.save(stream, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": stream.getvalue()}


def groot_message(new, seen=None):
    seen = {key: value[None, None] for key, value in (seen or observe()).items()}
    data = {"observation": {"state": seen}, "options": None} if new else {f"state.{k}": v for k, v in seen.items()}
    return msgpack.packb({"endpoint": "get_action", "data": data}, default=groot_array)


class Groot:
    """A raw socket that speaks GR00T, framed as a REQ socket does it (with REQ_CORRELATE: an id before)."""

    def __init__(self, server, front, new=True, frames=(b"",)):
        self.socket: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(server.bind)
        self.frames, self.good = list(frames), groot_message(new)

    def send(self, message):
        self.socket.send_multipart([*self.frames, message])
        while self.socket.poll(0):
            self.socket.recv_multipart()

    def works(self):
        while self.socket.poll(50):
            self.socket.recv_multipart()
        self.socket.send_multipart([*self.frames, self.good])
        assert self.socket.poll(5000), "no answer"
        answer = msgpack.unpackb(self.socket.recv_multipart()[-1])
        return "error" not in answer if isinstance(answer, dict) else len(answer) == 2


class OldGroot(Groot):
    def __init__(self, server, front):
        super().__init__(server, front, new=False)


class CorrelatingGroot(Groot):
    def __init__(self, server, front):
        super().__init__(server, front, frames=(b"\0\1\2\3", b""))


class Openpi:
    def __init__(self, server, front):
        self.front, self.good = front, dialect.encode(observe())
        self.connect()

    def connect(self):
        from websockets.sync.client import connect

        url = f"ws://127.0.0.1:{self.front.port}"
        self.socket = connect(url, compression=None, max_size=None, close_timeout=0.1).__enter__()
        self.socket.recv(timeout=5)

    def send(self, message):
        from websockets.exceptions import ConnectionClosed

        try:
            self.socket.send(message)
            answer = self.socket.recv(timeout=5)
        except ConnectionClosed:
            answer = ""
        if isinstance(answer, str):
            self.socket.close()
            self.connect()

    def works(self):
        self.socket.send(self.good)
        return "actions" in dialect.decode(self.socket.recv(timeout=5))


@pytest.fixture
def served():
    with PolicyServer(Chunks(), SMALL, LOCAL, warmup=False) as server, OpenpiServer(server, port=0) as front:
        yield server, front


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("speak", [Groot, OldGroot, CorrelatingGroot, Openpi])
def test_ten_thousand_mutated_messages_harm_nobody_else(served, speak, count):
    server, front = served
    rude, others = speak(server, front), [kind(server, front) for kind in (Groot, Openpi)]
    native = RemoteAgent(server.bind)
    memory = native.reset(SMALL)
    assert rude.works(), "as it is, the message is good"
    draw, before = random.Random(3), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in range(count):
        message = bytearray(rude.good)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(message))
            message[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        rude.send(bytes(message[: draw.randrange(1, len(message)) if n % 10 == 0 else len(message)]))
        if n % 50 == 0:
            assert all(other.works() for other in others) and actions_in(plan(native, memory)) == 8
    assert all(client.works() for client in (rude, *others))
    assert server._thread.is_alive()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "in KiB"
    native.close()


def test_what_is_too_large_harms_nobody_else_in_any_dialect():
    limits = Limits(bytes=100_000)
    with (
        PolicyServer(Chunks(), SMALL, LOCAL, warmup=False, limits=limits) as server,
        OpenpiServer(server, port=0) as front,
    ):
        for speak in (Groot, OldGroot, Openpi):
            rude, other = speak(server, front), speak(server, front)
            rude.send(rude.good + bytes(200_000))
            assert other.works()


def test_an_openpi_client_that_does_not_read_holds_nobody_up(served):
    server, front = served
    slow, other = Openpi(server, front), Openpi(server, front)

    def send():
        for _ in range(300):
            slow.socket.send(slow.good)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    for _ in range(20):
        assert other.works()
    assert len(server.inference._lanes["plan"].jobs()) <= 2, "one request a client waits, the others are not yet read"
    slow.socket.close()
    sender.join(5)


def test_a_plan_that_a_late_observation_asks_for_is_given_up_by_the_server():
    """The server's half of ``max_age_s``: what waited in its queue for too long is dropped, and told so."""
    with PolicyServer(Chunks(0.1), episode(), LOCAL, warmup=False) as server:
        busy, late = RemoteAgent(server.bind), RemoteAgent(server.bind, max_age_s=0.2)
        memories = busy.reset(episode()), late.reset(replace(episode(), seed=1))
        stream = busy.plan(memories[0], Call(observe()))
        next(stream)
        assert plan(late, memories[1], 1) == [] and late.stale == 1
        assert actions_in(list(stream)) > 0
        busy.close()
        late.close()


def test_a_refused_observation_is_answered_to_whoever_asked():
    with PolicyServer(Chunks(), episode(), LOCAL, warmup=False) as server:
        remote = RemoteAgent(server.bind, timeout_s=10.0)
        memory = remote.reset(episode())
        with pytest.raises(WireError, match="observation has the keys"):
            list(remote.plan(memory, Call({"agent_pos": np.zeros(4, np.float32)})))
        remote.close()
