"""What the tests of our own worlds share: an episode, Gymnasium's checker, and the same episode in another process."""

import subprocess
import sys
import warnings
from collections import deque

import numpy as np
from gymnasium.utils.env_checker import check_env

_PROGRAM = """
import importlib, numpy as np
env = getattr(importlib.import_module({module!r}), {name!r})()
env.reset(seed=8); env.step(np.ones(env.action_space.shape)); env.expert()()  # an earlier episode must not matter
state = [env.reset(seed={seed})[0]]; act = env.expert()
for _ in range({ticks}): state.append(env.step(act())[0])
print(b"".join(np.asarray(value).tobytes() for seen in state for value in seen.values()).hex())
"""


def play(env, seed, act=None, delay=0):
    """An episode of ``act()`` (default: the expert), each action ``delay`` ticks late; observations, infos, return."""
    observation, _ = env.reset(seed=seed)
    act = act or env.expert()
    waiting = deque([np.zeros(env.action_space.shape, np.float32)] * delay)
    observations, infos, total, terminated = [observation], [], 0.0, False
    while not terminated:
        waiting.append(act())
        observation, reward, terminated, truncated, info = env.step(waiting.popleft())
        assert not truncated
        assert observation in env.observation_space
        observations.append(observation)
        infos.append(info)
        total += reward
    return observations, infos, total


def assert_gymnasium_accepts(env, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*symmetric and normalized space.*")  # ours has units
        check_env(env.unwrapped, **options)


def assert_same_in_another_process(env, ticks, seed=7):
    """The expert's first ``ticks`` give the same bytes in a process of their own, and after another episode there."""
    seen = [env.reset(seed=seed)[0]]
    act = env.expert()
    seen += [env.step(act())[0] for _ in range(ticks)]
    program = _PROGRAM.format(module=type(env).__module__, name=type(env).__name__, seed=seed, ticks=ticks)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == b"".join(np.asarray(value).tobytes() for one in seen for value in one.values()).hex()
