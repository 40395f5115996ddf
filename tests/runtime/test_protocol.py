"""The wire: golden bytes, round trips, and that nothing a stranger sends is believed."""

import random
import tracemalloc

import msgpack
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from palaestra.agents.agent import Episode
from palaestra.envs.interface import Component, Interface
from palaestra.runtime import protocol
from palaestra.runtime.frame_codec import LIMITS, Limits, WireError, flatten, read_msgpack, unflatten, view_array
from palaestra.runtime.fronts import groot, openpi
from palaestra.runtime.protocol import describe_episode, describe_space, pack, read_episode, read_space, unpack

GOLDEN_OPENPI = (
    "81a7616374696f6e7384c40b5f5f6e6461727261795f5fc3c40464617461c4080000803f00000040c4056474797065a33c6634c405"
    "73686170659102"
)


def code(call, *args, **kwargs):
    with pytest.raises(WireError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def same(a, b):
    if isinstance(a, (np.ndarray, np.generic)):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


def test_golden_bytes_of_openpi():
    document = {"actions": np.array([1, 2], "<f4")}
    assert openpi.encode(document).hex() == GOLDEN_OPENPI
    assert same(openpi.decode(bytes.fromhex(GOLDEN_OPENPI)), document)


def test_golden_bytes_of_a_native_message():
    frames = pack(b"O", {"seq": 7}, {"x": np.array([1, 2], "<f4")})
    header = "82a37365710 7a474726565 81a178 83a65f5f6e645f5f00 a56474797065a33c6634 a5736861706591 02".replace(" ", "")
    assert [bytes(frame).hex() for frame in frames] == ["45565331", "4f", header, "0000803f00000040"]


dtypes = st.sampled_from(["<f4", "<f8", ">f4", "<f2", "|u1", "<i2", ">i8", "|b1"])
arrays = dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    arrays,
)
keys = st.text(max_size=6).filter(lambda key: not key.startswith("__"))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_every_tree_comes_back_as_it_was(tree):
    frames = pack(b"A", {"seq": 1}, {"tree": tree})
    assert same(unpack([bytes(frame) for frame in frames])["tree"], tree)


def test_arrays_of_any_layout_come_back_and_are_not_copied():
    whole = np.arange(24, dtype="<f4").reshape(4, 6)
    for array in (whole[:, ::2], whole.T, whole[::-1], np.float32(3), np.array(["ab", "c"]), np.zeros((0, 5))):
        plain, buffers = flatten(array)
        assert same(unflatten(plain, buffers), np.asarray(array) if isinstance(array, np.ndarray) else array)
    (buffer,) = flatten(whole)[1]
    view = view_array(buffer, "<f4", [4, 6])
    assert np.shares_memory(view, whole)
    assert not view.flags.writeable
    shifted = memoryview(bytearray(b"x" + whole.tobytes()))[1:]
    assert view_array(shifted, "<f4", [4, 6]).flags.aligned


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (3, 2), np.float32),
        spaces.Box(np.array([-1, -np.inf]), np.array([2, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiBinary([2, 3]),
        spaces.Text(12, min_length=2, charset="abc"),
        spaces.Tuple([spaces.Discrete(2), spaces.Dict(a=spaces.Box(0, 1, ()))]),
        spaces.Sequence(spaces.Discrete(3)),
    ],
)
def test_spaces_and_their_members_travel(space):
    far = read_space(unpack(pack(b"S", {}, {"s": describe_space(space)}))["s"])
    assert far == space
    space.seed(0)
    for _ in range(5):
        member = unpack(pack(b"O", {}, {"o": space.sample()}))["o"]
        assert far.contains(member)


def test_an_episode_travels_whole():
    card = Interface(30.0, (Component("v", 2, "velocity", unit="m/s"),), {"agent_pos": (Component("p", 2),)})
    box = spaces.Box(-1, 1, (2,))
    episode = Episode(7, "a/b-v0", spaces.Dict(agent_pos=box), box, card, 30.0, "go", {"gain": 2.0})
    assert read_episode(unpack(pack(b"R", {}, {"e": describe_episode(episode)}))["e"]) == episode


def test_what_cannot_travel_is_named():
    with pytest.raises(WireError, match="/a/1 is a object"):
        flatten({"a": [1, object()]})
    with pytest.raises(WireError, match=r"/a has the dtype '\|O'"):
        flatten({"a": np.array([None])})
    for bad in ({1: 2}, {"__nd__": 0}, 2**64, np.zeros(1, "c8"), np.zeros(1, "M8[s]"), np.zeros(1, "i4,f4")):
        assert code(flatten, {"x": bad}) == "BAD_SCHEMA"


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("|O", [1], 8),
        ("<c8", [1], 8),
        ("|V8", [1], 8),
        ("<M8[s]", [1], 8),
        ("f4,f4", [1], 8),
        ("<f4", [-1], 4),
        ("<f4", [2], 4),
        ("<f4", [2**40, 0], 0),
        ("<f4", [1] * 9, 4),
        ("<f4", [True], 4),
        ("<f4", "ab", 4),
        ("<f16", [1], 16),
        (b"<f4", [1], 4),
        (None, None, 0),
    ],
)
def test_impossible_arrays_are_refused_in_every_dialect(dtype, shape, size):
    data = bytes(size)
    assert code(view_array, data, dtype, shape) == "BAD_HEADER"
    assert code(unflatten, {"__nd__": 0, "dtype": dtype, "shape": shape}, [data]) == "BAD_HEADER"
    openpi_form = {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}
    assert code(openpi.decode, msgpack.packb({"x": openpi_form})) == "BAD_HEADER"


def test_a_bool_is_zero_or_one():
    assert code(view_array, b"\x02", "|b1", [1]) == "BAD_HEADER"


def test_npy_files_are_read_without_believing_their_header():
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.ones(1, np.float32)):
        assert np.array_equal(groot.decode(groot.encode({"x": array}))["x"], array)
    huge = (
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }".ljust(127) + b"\n"
    )
    for as_npy in (huge, b"", b"\x93NUMPY", 7, b"\x80\x04pickle"):
        assert code(groot.decode, msgpack.packb({"__ndarray_class__": True, "as_npy": as_npy})) == "BAD_HEADER"
    structured = np.zeros(2, "i4,f4")
    assert code(groot.decode, groot.encode({"x": structured})) == "BAD_HEADER"


def test_bombs_cost_little_memory():
    nested_lists = b"\xdd\xff\xff\xff\xff" * 1000  # each claims four thousand million members
    many_maps = msgpack.packb([[{}] * 4000] * 200)
    deep = b"\x91" * 900 + b"\x00"
    tracemalloc.start()
    for bomb, expected in ((nested_lists, "BAD_HEADER"), (many_maps, "TOO_LARGE")):
        assert code(read_msgpack, bomb) == expected
    assert code(openpi.decode, deep) == "BAD_HEADER"
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert code(read_msgpack, b"\xc1") == "BAD_HEADER"
    assert code(read_msgpack, msgpack.packb(msgpack.Timestamp(1))) == "BAD_HEADER"
    assert code(read_msgpack, b"\x00" * 10, Limits(bytes=5)) == "TOO_LARGE"
    assert code(pack, b"O", {}, np.zeros(9, np.uint8), Limits(bytes=8)) == "TOO_LARGE"


def test_a_stranger_cannot_make_a_space_that_is_too_large():
    described = {**describe_space(spaces.Box(0, 1, (1,))), "shape": [2**20, 2**10]}
    assert code(read_space, described) == "BAD_HEADER"
    assert code(read_space, {"space": "Graph"}) == "BAD_HEADER"
    assert code(read_space, {"space": "Discrete", "n": -3, "start": 0}) == "BAD_HEADER"


def mutated(message, draw):
    """A message with bytes changed, cut, doubled or inserted."""
    data = bytearray(message)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(4):
            case 0 if at < len(data):
                data[at] = draw.randrange(256)
            case 1:
                del data[at : at + draw.randint(1, 8)]
            case 2:
                data[at:at] = draw.randbytes(draw.randint(1, 8))
            case _:
                data[at:at] = data[at : at + draw.randint(1, 32)]
    return bytes(data)


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_messages_are_read_or_refused_and_nothing_else(count):
    draw = random.Random(0)
    observation = {"state": {"x": np.zeros((1, 1, 3), np.float32)}, "language": {"task": [["go"]]}}
    space = spaces.Dict(x=spaces.Box(-1, 1, (3,)), t=spaces.Text(4))
    episode = describe_episode(Episode(1, "w", space, space["x"], None, 30.0))
    native = [bytes(frame) for frame in pack(b"R", {"seq": 1, "episode": 2}, {"episode": episode})]
    openpi_message = openpi.encode({"x": np.zeros(3, np.float32), "n": np.int64(3), "prompt": "go"})
    groot_message = groot.encode({"endpoint": "get_action", "data": {"observation": observation}})
    refused: list[str] = []
    for _ in range(count):
        frames, at = list(native), draw.randrange(2, len(native))
        frames[at] = mutated(frames[at], draw)
        for read in (
            lambda frames=frames: read_episode(unpack(frames)["episode"]),
            lambda: openpi.decode(mutated(openpi_message, draw)),
            lambda: groot.decode(mutated(groot_message, draw)),
        ):
            try:
                read()
            except WireError as error:
                refused.append(error.code)
    assert len(refused) > count, "most mutations are noticed"
    assert set(refused) <= set(protocol.CODES)


def test_the_limits_are_those_of_the_page():
    assert (LIMITS.bytes, LIMITS.depth, LIMITS.ndim, LIMITS.text) == (64 << 20, 32, 8, 64 << 10)
