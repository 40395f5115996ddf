"""The main job: paired seeds, workers that never change a result, resuming, and failures that stop nothing."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.agents.agent import StepAgent
from palaestra.runtime.executor import Execution
from palaestra.runtime.registry import make_agent
from palaestra.runtime.rollout import _join, run
from palaestra.runtime.store import Store
from palaestra.runtime.video import VideoWriter

BALL = "palaestra/BallIntercept-v0"


def essence(result):
    return [(r.seed, r.success, r.score, r.ticks, r.episode_return, dict(r.metrics), r.failed) for r in result.rows]


def test_episodes_are_seeded_and_stored():
    result = run(BALL, "random", episodes=4, seed=10)
    assert [row.seed for row in result.rows] == [10, 11, 12, 13]
    assert essence(result) == essence(run(BALL, "random", episodes=4, seed=10))
    stored = Store().episodes(run_id=result.run_id)
    assert sorted(row.seed for row in stored) == [10, 11, 12, 13]
    row = stored[0]
    assert row.provenance["libraries"]["mujoco"] and row.provenance["palaestra"] and row.metrics["miss_m"] > 0
    assert row.lanes == 1 and row.clock == "lockstep" and not row.privileged


def test_the_expert_is_marked_and_better_than_nothing():
    expert, zero = (run(BALL, agent, episodes=10) for agent in ("expert", "zero"))
    assert all(row.privileged for row in expert.rows)
    assert expert.success is not None and zero.success is not None
    assert expert.success.low > zero.success.high
    assert expert.success.n == 10 and expert.success.low < 1.0, "ten successes are no certainty"


@pytest.mark.parametrize("agent", ["random", "flow"])
def test_worker_processes_never_change_a_result(agent):
    settings = {"episodes": 6, "lanes": 2, "clock": "virtual", "profile": "xvla-4090"}
    alone, spread = (run(BALL, agent, workers=workers, **settings) for workers in (1, 2))
    assert essence(alone) == essence(spread)


def test_an_agent_that_is_served_to_the_workers_gives_the_same_episodes():
    alone = run(BALL, "random", episodes=4)
    served = run(BALL, make_agent("random", BALL), name="random", episodes=4, workers=2, serve=True)
    assert essence(alone) == essence(served)
    assert [row.agent for row in served.rows] == ["random"] * 4
    assert served.rows[0].provenance["config"]["serve"] and served.to_json()["served"]
    assert run(BALL, "random", episodes=4, resume=True).run_id == alone.run_id, "they are two configurations"
    with pytest.raises(ValueError, match="simulator's state"):
        run(BALL, "expert", episodes=2, serve=True)


@pytest.mark.slow
def test_a_network_that_is_served_changes_no_more_than_last_bits():
    alone, one, two = (run(BALL, "flow", episodes=6, workers=n or 1, serve=n > 0) for n in (0, 1, 2))
    assert essence(alone) == essence(one), "whoever plans alone gets the same bits"
    assert [row.score for row in two.rows] == [row.score for row in alone.rows]
    assert [r.metrics["miss_m"] for r in two.rows] == pytest.approx([r.metrics["miss_m"] for r in alone.rows], abs=1e-3)


def test_lanes_change_no_more_than_last_bits():
    one, many = (run(BALL, "flow", episodes=6, lanes=lanes) for lanes in (1, 6))
    assert [row.score for row in one.rows] == [row.score for row in many.rows]
    assert [r.metrics["miss_m"] for r in one.rows] == pytest.approx([r.metrics["miss_m"] for r in many.rows], abs=1e-3)


def test_latency_costs_score_and_shows_in_the_columns():
    free, slow = (
        run(BALL, "expert", episodes=20, clock="virtual", profile=profile, execution=Execution(mode="async"))
        for profile in ("zero", "evaluation_ms=300")
    )
    assert free.score.mean == 1.0 and slow.score.high < free.score.mean
    assert slow.cost("ttfa_ms").mean == pytest.approx(300)
    assert slow.cost("reaction_ms").mean > 300 > free.cost("reaction_ms").mean
    assert slow.cost("stalls").mean > free.cost("stalls").mean == 0


def test_resume_runs_what_is_missing_and_nothing_twice():
    first = run(BALL, "zero", episodes=3)
    more = run(BALL, "zero", episodes=8, resume=True)
    assert (more.run_id, more.new) == (first.run_id, 5)
    assert essence(more)[:3] == essence(first)
    assert run(BALL, "zero", episodes=8, resume=True).new == 0
    assert run(BALL, "zero", episodes=3, seed=1, resume=True).run_id != first.run_id
    assert run(BALL, "random", episodes=1, resume=True).run_id != first.run_id


def test_two_that_begin_to_resume_together_make_one_run(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Store, "latest_run", lambda self, digest: None)  # neither has stored anything yet
        first, second = (run(BALL, "zero", episodes=3, resume=True) for _ in range(2))
    assert first.run_id == second.run_id and (first.new, second.new) == (3, 0)
    assert len(Store().episodes()) == 3 and run(BALL, "zero", episodes=3, resume=True).new == 0


def test_a_data_set_of_a_resumed_run_has_its_first_episodes_too(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    first = run(BALL, "zero", episodes=2, resume=True)
    both = run(BALL, "zero", episodes=5, resume=True, record=tmp_path)
    assert both.run_id == first.run_id and both.new == 3
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (name,) = minari.list_local_datasets()
    returns = [float(episode.rewards.sum()) for episode in minari.load_dataset(name)]
    assert returns == [row.episode_return for row in both.rows]
    run(BALL, "zero", episodes=1, resume=True, clock="wall")
    with pytest.raises(ValueError, match="do not happen twice in real time"):
        run(BALL, "zero", episodes=2, resume=True, clock="wall", record=tmp_path / "late")


def test_a_film_that_fails_costs_neither_the_results_nor_the_folder(tmp_path):
    parts = [tmp_path / f"film.part{n}.mp4" for n in range(2)]
    for part in [*parts, tmp_path / ".film.part1.99.partial.mp4"]:
        part.write_bytes(b"cut short by a full disk")
    film, trouble = _join(parts, tmp_path / "film.mp4")
    assert film is None and "no video" in trouble and not list(tmp_path.iterdir())
    writer = VideoWriter(tmp_path / "film.mp4")
    for _ in range(3):
        writer.add(np.zeros((32, 32, 3), np.uint8))
    writer.frames += 1  # as if the encoder had lost one
    with pytest.raises(RuntimeError, match="space on the disk"):
        writer.close()
    assert not list(tmp_path.iterdir())


class Fragile(gymnasium.Env):
    """Breaks in every third episode, and stays broken."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    broken = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.tick = seed, 0
        if self.broken:
            raise RuntimeError("still broken")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.tick += 1
        if self.seed % 3 == 2 and self.tick == 2:
            self.broken = True
            raise RuntimeError("a cable came loose")
        return np.zeros(1, np.float32), 1.0, self.tick == 5, False, {"is_success": True}


def test_a_world_that_breaks_is_made_anew_and_the_run_goes_on():
    gymnasium.register("test/Fragile-v0", Fragile)
    result = run("test/Fragile-v0", "random", episodes=7)
    assert [row.failed for row in result.rows] == [False, False, True, False, False, True, False]
    assert "a cable came loose" in (result.rows[2].reason or "")
    assert result.failed == 2 and result.success.mean == pytest.approx(5 / 7)


class Wild(StepAgent):
    def act(self, memory, observation):
        return np.full(2, 9.0, np.float32)


def test_an_agent_object_may_be_given_and_its_wild_action_fails_the_episode():
    result = run(BALL, Wild(), episodes=1)
    assert result.failed == 1 and "outside the action space" in (result.rows[0].reason or "")
    with pytest.raises(ValueError, match="workers=2 needs an agent by name"):
        run(BALL, Wild(), episodes=2, workers=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"episodes": 0}, "episodes=0"),
        ({"seed": -1}, "seed=-1"),
        ({"workers": 0}, "workers=0"),
        ({"lanes": 0}, "lanes=0"),
        ({"clock": "wal"}, "clock='wal'"),
        ({"profile": "pi05-4090"}, "needs clock='virtual'"),
        ({"execution": Execution(mode="async")}, "needs clock='virtual'"),
        ({"backend": "optim=adamw"}, "optim"),
        ({"backend": "adapter=lora"}, "no network"),
    ],
)
def test_calls_that_cannot_work_are_refused_before_the_first_episode(arguments, words):
    with pytest.raises(ValueError, match=words):
        run(BALL, "zero", **arguments)
    assert Store().episodes() == []


def test_a_world_without_a_rate_needs_lockstep():
    gymnasium.register("test/Timeless-v0", Fragile)
    with pytest.raises(ValueError, match="does not say how many actions it takes per second"):
        run("test/Timeless-v0", "random", clock="virtual")


KILL_ME = """
import sys
from palaestra.runtime.rollout import run
if __name__ == "__main__":
    run("palaestra/BallIntercept-v0", "zero", episodes=400, resume=True, workers=int(sys.argv[1]))
"""


def killed_runs(tmp_path: Path, kills: int, workers: int, seed: int) -> None:
    """Kill a run at random moments, then let it finish: no episode is missing and none is there twice."""
    script = tmp_path / "run.py"
    script.write_text(KILL_ME)
    generator = random.Random(seed)
    command = [sys.executable, str(script), str(workers)]
    seen = 0
    for _ in range(kills):
        process = subprocess.Popen(command)
        before = seen
        deadline = time.monotonic() + 60
        while process.poll() is None and seen == before and time.monotonic() < deadline:
            time.sleep(0.05)  # wait until it has stored something of its own, so that every kill interrupts work
            seen = len(Store().episodes())
        time.sleep(generator.uniform(0, 0.3))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        rows = Store().episodes()  # the database opens
        assert max(Counter(row.seed for row in rows).values(), default=0) <= 1
        seen = len(rows)
    subprocess.run(command, check=True)
    rows = Store().episodes()
    assert sorted(row.seed for row in rows) == list(range(400))
    assert len({row.run_id for row in rows}) == 1


def test_kill_and_resume_loses_no_episode(tmp_path):
    killed_runs(tmp_path, kills=2, workers=1, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_twenty_kills_lose_no_episode(tmp_path, workers):
    killed_runs(tmp_path, kills=20, workers=workers, seed=1)
