"""Stock clients of GR00T and openpi get, bit for bit, what the agent plans in process."""

import io
import random
import urllib.request
import zlib
from dataclasses import replace

import msgpack
import numpy as np
import pytest
import zmq
from gymnasium import spaces
from serving_agents import Chunks, Faulty, TwoRates

from palaestra.agents.agent import Call, Episode
from palaestra.envs.interface import Component, Interface
from palaestra.runtime.fronts import openpi as dialect
from palaestra.runtime.server import PolicyServer

pytest.importorskip("websockets")
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from palaestra.runtime.fronts.openpi import OpenpiServer

WORLD = spaces.Dict(
    agent_pos=spaces.Box(-1, 1, (4,)),
    pixels=spaces.Dict(front=spaces.Box(0, 255, (6, 5, 3), np.uint8), wrist=spaces.Box(0, 255, (6, 5, 3), np.uint8)),
    instruction=spaces.Text(64),
)
CARD = Interface(20.0, (Component("arm", 3), Component("gripper", 1, "gripper", closed=0.0, open=1.0)), chunk=8)
EPISODE = Episode(11, "kitchen", WORLD, spaces.Box(-1, 1, (4,)), CARD, 20.0)


class Seeing(Chunks):
    """Plans from every bit of an observation, and from its instruction twice."""

    interface = CARD

    def reset(self, episode):
        return {**super().reset(episode), "instruction": episode.instruction}

    def plan(self, memory, call):
        o = call.observation
        said = f"{o['instruction']} {memory['instruction']}".encode()
        bits = [zlib.crc32(x) / 2**32 for x in (o["pixels"]["front"].tobytes(), o["pixels"]["wrist"].tobytes(), said)]
        yield from super().plan(memory, Call({"x": np.array([*o["agent_pos"], *bits])}, None, 0, call.committed))


def observations(count, seed=0, words="pick it up"):
    draw = np.random.default_rng(seed)
    picture = lambda: draw.integers(0, 256, (6, 5, 3), np.uint8)  # noqa: E731
    return [
        {
            "agent_pos": draw.uniform(-1, 1, 4).astype(np.float32),
            "pixels": {"front": picture(), "wrist": picture()},
            "instruction": words,
        }
        for _ in range(count)
    ]


def in_process(seen, seed=11, committed=(), words="pick it up"):
    agent = Seeing()
    memory = agent.reset(replace(EPISODE, seed=seed, instruction=words))
    chunks = []
    for observation in seen:
        parts = [p.actions for p in agent.plan(memory, Call(observation, committed=committed)) if len(p.actions)]
        chunks.append(np.concatenate([committed, *parts] if len(committed) else parts))
    return chunks


@pytest.fixture
def server():
    with PolicyServer(Seeing(), EPISODE, "tcp://127.0.0.1:*") as server:
        yield server


# --- GR00T ---


class GrootDouble:
    """What a stock client puts on the wire, and what it makes of the answer."""

    def __init__(self, url, token=None, correlate=False):
        self.socket: zmq.Socket = zmq.Context.instance().socket(zmq.REQ)
        for option, value in ((zmq.LINGER, 0), (zmq.REQ_CORRELATE, int(correlate)), (zmq.RCVTIMEO, 5000)):
            self.socket.setsockopt(option, value)
        self.socket.connect(url)
        self.token = token

    @staticmethod
    def array(value):
        stream = io.BytesIO()
        np.save(stream, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": stream.getvalue()}

    def raw(self, request):
        self.socket.send(msgpack.packb(request, default=self.array))
        return self.socket.recv()

    def call(self, endpoint, data=None):
        request = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if self.token:
            request["api_token"] = self.token

        def hook(m):
            return np.load(io.BytesIO(m["as_npy"]), allow_pickle=False) if "__ndarray_class__" in m else m

        answer = msgpack.unpackb(self.raw(request), object_hook=hook)
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"Server error: {answer['error']}")
        return answer


def nested(rows):
    return {
        "video": {c: np.stack([r["pixels"][c] for r in rows])[:, None] for c in ("front", "wrist")},
        "state": {"agent_pos": np.stack([r["agent_pos"] for r in rows])[:, None]},
        "language": {"task": [[r["instruction"]] for r in rows]},
    }


def flat(rows):
    return {
        "video.front": np.stack([r["pixels"]["front"] for r in rows])[:, None],
        "video.wrist": np.stack([r["pixels"]["wrist"] for r in rows])[:, None],
        "state.agent_pos": np.stack([r["agent_pos"] for r in rows])[:, None],
        "annotation.human.task_description": [r["instruction"] for r in rows],
    }


@pytest.mark.parametrize("correlate", [False, True])
def test_groot_clients_get_the_in_process_result(server, correlate):
    client = GrootDouble(server.bind, correlate=correlate)
    assert client.raw({"endpoint": "ping"}) == (b"\x82\xa6status\xa2ok\xa7message\xb1Server is running"), (
        "byte for byte"
    )
    seen = observations(100)
    for observation, expected in zip(seen, in_process(seen), strict=True):
        actions, info = client.call("get_action", {"observation": nested([observation]), "options": None})
        assert info == {}
        assert list(actions) == ["arm", "gripper"]
        assert actions["arm"].shape == (1, 8, 3)
        assert actions["arm"].dtype == np.float32
        assert np.array_equal(np.concatenate([actions["arm"], actions["gripper"]], -1)[0], expected)
    assert client.call("reset", {"options": None}) == {}
    actions, _ = client.call("get_action", {"observation": flat(seen[:1])})
    assert np.array_equal(actions["action.arm"][0], in_process(seen[:1])[0][:, :3]), "the first reset changes nothing"
    client.call("reset")
    actions, _ = client.call("get_action", {"observation": flat(seen[:1])})
    assert np.array_equal(actions["action.arm"][0], in_process(seen[:1], seed=12)[0][:, :3]), "the next has a new seed"


def test_groot_n15_sends_the_observation_itself_with_or_without_a_batch(server):
    (seen,) = observations(1)
    (expected,) = in_process([seen])
    actions = GrootDouble(server.bind).call("get_action", flat([seen]))
    assert np.array_equal(actions["action.gripper"], expected[None, :, 3:])
    single = {k: v[0] for k, v in flat([seen]).items()}
    actions = GrootDouble(server.bind).call("get_action", single)
    assert np.array_equal(actions["action.arm"], expected[:, :3])


def test_a_row_of_a_batch_is_what_it_would_be_alone(server):
    rows = observations(3)
    actions, _ = GrootDouble(server.bind).call("get_action", {"observation": nested(rows)})
    for row, observation in enumerate(rows):
        assert np.array_equal(actions["arm"][row], in_process([observation])[0][:, :3])


def test_groot_frozen_steps_are_the_end_of_the_last_chunk(server):
    client, (first, second) = GrootDouble(server.bind), observations(2)
    last = client.call("get_action", {"observation": nested([first])})[0]["arm"][0]
    options = {"rtc_overlap_steps": 4, "rtc_frozen_steps": 3}
    now = client.call("get_action", {"observation": nested([second]), "options": options})[0]["arm"][0]
    assert np.array_equal(now[:3], last[4:7])
    with pytest.raises(RuntimeError, match="rtc_overlap_steps=9"):
        client.call("get_action", {"observation": nested([second]), "options": {**options, "rtc_overlap_steps": 9}})


def test_groot_says_what_it_takes_and_gives(server):
    client = GrootDouble(server.bind)
    known = client.call("get_modality_config")
    assert {kind: (c["as_json"]["modality_keys"], len(c["as_json"]["delta_indices"])) for kind, c in known.items()} == {
        "video": (["front", "wrist"], 1),
        "state": (["agent_pos"], 1),
        "action": (["arm", "gripper"], 8),
        "language": (["task"], 1),
    }
    client.call("get_action", flat(observations(1)))
    assert isinstance(client.call("get_modality_config")["video"]["as_json"], str), "N1.5 reads JSON text"


def test_groot_errors_are_answers(server):
    client = GrootDouble(server.bind)
    good = nested(observations(1))
    for data, said in (
        ({"observation": {**good, "state": {}}}, "'state.agent_pos' is missing"),
        ({"observation": {**good, "state": {"agent_pos": np.zeros((1, 1, 5), np.float32)}}}, "got shape"),
        ({"observation": {**good, "state": {"agent_pos": np.zeros((2, 1, 4), np.float32)}}}, "batches"),
        ({"observation": {**good, "state": {"agent_pos": np.zeros((1, 2, 4), np.float32)}}}, "T=1"),
        ({"observation": 3}, "maps"),
        (None, "data"),
    ):
        with pytest.raises(RuntimeError, match=said):
            client.call("get_action", data)
    with pytest.raises(RuntimeError, match="kill is disabled"):
        client.call("kill")
    with pytest.raises(RuntimeError, match="Unknown endpoint: dance"):
        client.call("dance")
    assert client.call("get_action", {"observation": good})
    with PolicyServer(Seeing(), EPISODE, "tcp://127.0.0.1:*", token="sesame") as closed:
        assert GrootDouble(closed.bind, token="sesame").call("ping")
        with pytest.raises(RuntimeError, match="Unauthorized: Invalid API token"):
            GrootDouble(closed.bind).call("ping")


# --- openpi ---


class OpenpiDouble:
    """A stock client, for machines without the package."""

    def __init__(self, port, api_key=None):
        headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        url = f"ws://127.0.0.1:{port}"
        self.socket = connect(url, compression=None, max_size=None, additional_headers=headers).__enter__()
        self.metadata = msgpack.unpackb(self.socket.recv())

    def send(self, observation):
        self.socket.send(dialect.encode(observation))

    def infer(self, observation):
        self.send(observation)
        answer = self.socket.recv(timeout=5)
        if isinstance(answer, str):
            raise RuntimeError(f"Error in inference server:\n{answer}")
        return dialect.decode(answer)


def sent(observation):
    """How an openpi user writes the observation: float64 states, channels first, a prompt, and extras."""
    channels_first = {camera: p.transpose(2, 0, 1) for camera, p in observation["pixels"].items()}
    return {
        "agent_pos": observation["agent_pos"].astype(np.float64),
        "pixels": channels_first,
        "prompt": observation["instruction"],
        "observation/extra": np.float32(3),
    }


@pytest.fixture
def front(server):
    with OpenpiServer(server, port=0) as front:
        yield front


def test_openpi_clients_get_the_in_process_result(front):
    client, seen = OpenpiDouble(front.port), observations(100)
    for observation, expected in zip(seen, in_process(seen), strict=True):
        result = client.infer(sent(observation))
        assert np.array_equal(result["actions"], expected)
        assert result["policy_timing"]["infer_ms"] >= 0
    assert result["server_timing"].keys() == {"infer_ms", "prev_total_ms"}
    again = observations(1, words="put it down")
    assert np.array_equal(client.infer(sent(again[0]))["actions"], in_process(again, 12, words="put it down")[0])


def test_an_unmodified_openpi_client_gets_the_in_process_result(front):
    policy = pytest.importorskip("openpi_client.websocket_client_policy")
    client, seen = policy.WebsocketClientPolicy("127.0.0.1", front.port), observations(100)
    assert client.get_server_metadata()["server"] == "palaestra"
    for observation, expected in zip(seen, in_process(seen), strict=True):
        assert np.array_equal(client.infer(sent(observation))["actions"], expected)
    with pytest.raises(RuntimeError, match="Error in inference server"):
        client.infer({"agent_pos": np.zeros(3)})


def test_openpi_errors_are_a_text_and_the_close_that_clients_know(front):
    for observation, said in (
        ({}, "'agent_pos' is missing"),
        ({**sent(observations(1)[0]), "agent_pos": np.zeros(9)}, r"got shape \[9\], expected \[4\]"),
        ({**sent(observations(1)[0]), "action_prefix": np.zeros((2, 4))}, "belong together"),
    ):
        client = OpenpiDouble(front.port)
        with pytest.raises(RuntimeError, match=said):
            client.infer(observation)
        with pytest.raises(ConnectionClosed) as closed:
            client.socket.recv(timeout=5)
        assert closed.value.rcvd.code == 1011
        assert closed.value.rcvd.reason == "Internal server error. Traceback included in previous frame."
    assert OpenpiDouble(front.port).infer(sent(observations(1)[0])), "others go on"


def test_openpi_has_a_health_check_and_a_door(server):
    with OpenpiServer(server, port=0, api_key="sesame") as front:
        with urllib.request.urlopen(f"http://127.0.0.1:{front.port}/healthz", timeout=5) as answer:
            assert (answer.status, answer.read()) == (200, b"OK\n")
        assert OpenpiDouble(front.port, "sesame").infer(sent(observations(1)[0]))
        for wrong in (None, "sesam"):
            with pytest.raises(InvalidStatus, match="401"):
                OpenpiDouble(front.port, wrong)
    with pytest.raises(ValueError, match="other machines"):
        OpenpiServer(server, host="0.0.0.0")


def test_openpi_streaming_sends_parts_and_then_the_whole(server):
    (seen,) = observations(1)
    prefix = np.full((2, 4), 0.5, np.float32)
    (expected,) = in_process([seen], committed=prefix)
    with OpenpiServer(server, port=0, streaming=True) as front:
        client = OpenpiDouble(front.port)
        client.send({**sent(seen), "action_prefix": prefix, "delay": np.array(2)})
        parts = []
        while (answer := dialect.decode(client.socket.recv(timeout=5)))["type"] == "partial":
            parts.append(answer["actions"])
    assert len(parts) == 3
    assert np.array_equal(np.concatenate([prefix, *parts]), expected)
    assert np.array_equal(answer["actions"], expected)


def test_agents_of_two_rates_and_agents_that_fail_are_served_to_strangers_too():
    small = spaces.Dict(agent_pos=spaces.Box(-1, 1, (4,)), environment_state=spaces.Box(-9, 9, (7,)))
    episode = Episode(0, "small", small, spaces.Box(-1.5, 1.5, (2,)))
    observation = {"agent_pos": np.ones(4, np.float32), "environment_state": np.ones(7, np.float32)}
    with PolicyServer(TwoRates(), episode, "tcp://127.0.0.1:*") as server, OpenpiServer(server, port=0) as front:
        expected = np.float32(np.sin(7.0 + 4.0))
        assert OpenpiDouble(front.port).infer(observation)["actions"] == pytest.approx(np.full((1, 2), expected))
    with PolicyServer(Faulty(), episode, "tcp://127.0.0.1:*") as server, OpenpiServer(server, port=0) as front:
        for habit, said in (("raise", "on fire"), ("nan", "not finite"), ("refuse", "not mine")):
            with pytest.raises(RuntimeError, match=said):
                OpenpiDouble(front.port).infer({**observation, "prompt": habit})
        state = {"agent_pos": observation["agent_pos"][None, None], "environment_state": np.ones((1, 1, 7), np.float32)}
        client = GrootDouble(server.bind)
        with pytest.raises(RuntimeError, match="on fire"):
            client.call("get_action", {"observation": {"state": state, "language": {"task": [["raise"]]}}})
        assert client.call("get_action", {"observation": {"state": state, "language": {"task": [["go"]]}}})


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_messages_harm_nobody_else(server, front, count):
    draw = random.Random(2)
    groot_message = msgpack.packb(
        {"endpoint": "get_action", "data": {"observation": nested(observations(1))}}, default=GrootDouble.array
    )
    openpi_message = dialect.encode(sent(observations(1)[0]))

    def mutate(message):
        data = bytearray(message)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        return bytes(data)

    rude: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
    rude.linger = 0
    rude.connect(server.bind)
    good, also_good = GrootDouble(server.bind), OpenpiDouble(front.port)
    (seen,) = observations(1)
    stranger = OpenpiDouble(front.port)
    for n in range(count):
        rude.send_multipart([b"", mutate(groot_message)])
        while rude.poll(0):
            rude.recv_multipart()
        try:
            stranger.socket.send(mutate(openpi_message))
            answer = stranger.socket.recv(timeout=5)
        except ConnectionClosed:
            answer = ""
        if isinstance(answer, str):
            stranger.socket.close()
            stranger = OpenpiDouble(front.port)
        if n % 50 == 0:
            assert good.call("get_action", {"observation": nested([seen])})
            assert "actions" in also_good.infer(sent(seen))
    rude.close()
    assert good.call("ping")
