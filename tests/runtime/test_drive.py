"""``palaestra drive``: a served agent drives a world or a robot here, and a person stays in charge of it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch

from palaestra.agents.agent import ActionPart, Agent, Episode
from palaestra.runtime.cli.main import main
from palaestra.runtime.cli.serve import _use_threads
from palaestra.runtime.registry import make_agent, make_env
from palaestra.runtime.robots.example_arm import ExampleArm
from palaestra.runtime.rollout import run
from palaestra.runtime.server import PolicyServer
from palaestra.runtime.store import Store

BALL = "palaestra/BallIntercept-v0"
ARM = "robot:palaestra.runtime.robots.example_arm"


class Steady(Agent):
    """Moves everything a little, 16 ticks at a time."""

    def reset(self, episode):
        return episode.action_space

    def plan(self, memory, call):
        yield ActionPart(0, np.full((16, *memory.shape), 0.2, memory.dtype), evaluations=1, replan_in=4)


@pytest.fixture(scope="module")
def url():
    """An agent served for the ball."""
    env = make_env(BALL)
    episode = Episode(0, BALL, env.observation_space, env.action_space, env.unwrapped.interface, 30.0)
    with PolicyServer(Steady(), episode, "tcp://127.0.0.1:*") as server:
        yield server.bind


@pytest.fixture
def drive(monkeypatch, capfd):
    """Run the command; returns exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["palaestra", "drive", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return call


def test_a_simulated_robot_is_driven_in_real_time(drive, url):
    code, out, err = drive(f"simulated:{BALL}", "--connect", url, "-n", "2", "--seed", "5", "--json")
    document = json.loads(out)
    assert code == 0, err
    assert {"env", "agent", "clock", "episodes", "success", "score", "failed", "run_id"} <= document.keys()
    assert (document["clock"], document["episodes"], document["failed"]) == ("wall", 2, 0)
    for words in ("Steady, served for", "30 Hz", "mode async, hold decelerate", "episode 2 of 2: seed 6"):
        assert words in err
    costs = document["costs"]
    assert costs["ttfa_ms"] > 0 and 0 <= costs["age_p50_ms"] <= costs["age_p95_ms"] <= costs["age_max_ms"]
    assert costs["stalls"] < 10 and "late_ticks" in costs
    row = Store().episodes(run_id=document["run_id"])[0]
    assert row.provenance["served"]["name"] == "Steady" and row.metrics["robot_stop"] == 0


def test_the_table_shows_what_real_time_costs(drive, url):
    code, out, _ = drive(BALL, "--connect", url, "--mode", "prefix", "--delay", "2")
    assert code == 0
    for words in (
        "time to first action",
        "oldest, ms",
        "ticks without action",
        "half a tick late",
        "interface unchecked",
    ):
        assert words in out


def test_in_lockstep_it_is_run_with_another_agent(drive, url):
    code, out, _ = drive(BALL, "--connect", url, "-n", "3", "--clock", "lockstep", "--json")
    assert code == 0
    there, here = Store().episodes(run_id=json.loads(out)["run_id"]), run(BALL, Steady(), episodes=3).rows
    assert there[0].clock == "lockstep"
    assert {(row.seed, row.score, row.metrics["miss_m"]) for row in there} == {
        (row.seed, row.score, row.metrics["miss_m"]) for row in here
    }


def test_a_real_robot_moves_only_when_somebody_says_so(drive, url, monkeypatch):
    moved: list[str] = []
    monkeypatch.setattr(ExampleArm, "home", lambda self, seed=None: moved.append("home"))
    call = (f"{ARM}:ExampleArm", "--connect", url, "--max-ticks", "5")
    code, out, err = drive(*call)
    assert code == 2 and "--yes" in err and not moved and out == ""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    code, _, err = drive(*call)
    assert code == 1 and "Is everybody clear" in err and "nothing has moved" in err and not moved
    assert "watchdog after 60 ms without a command, no limits" in err
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    code, _, err = drive(*call)
    assert code == 1 and moved == ["home"] and "max_ticks=5" in err, "the arm has no task that could be over"
    code, _, err = drive(*call, "--yes")
    assert code == 1 and moved == ["home", "home"] and "everybody" not in err
    monkeypatch.setattr("sys.stdin", Terminal("y\n\nn\n"))
    code, _, err = drive(*call, "-n", "5")
    assert code == 1 and "Episode 3 of 5: is the scene ready" in err and "2 of 5 episodes are finished" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--connect", "tcp://127.0.0.1:9", "--patience-s", "0.3"], 1, "is the server running there"),
        (["--connect", "localhost"], 2, "not an endpoint"),
        (["--connect", "URL", "--key", "nowhere.key_secret"], 2, "key and server_key belong together"),
        (["--connect", "URL", "--mode", "asink"], 2, "mode='asink'"),
        (["--connect", "URL", "--clock", "lockstep", "--mode", "async"], 2, "needs clock='virtual' or 'wall'"),
        (["--connect", "URL", "--video", "film.gif"], 2, "ends in .mp4"),
        ([], 2, "--connect"),
    ],
)
def test_a_wrong_call_and_a_missing_server_are_told_apart(drive, url, arguments, code, words):
    got, out, err = drive(BALL, *[url if word == "URL" else word for word in arguments])
    assert (got, out) == (code, "") and words in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("robot:nowhere.arm:Arm", "no module named 'nowhere'"),
        (f"{ARM}:Arm", "has no 'Arm'"),
        (f"{ARM}:Limits", "cannot be made"),
        (f"{ARM}:ExampleArm:speed=3", "unexpected keyword argument 'speed'"),
        (f"{ARM}:_Motors", "is a _Motors, expected"),
        ("simulated:CartPole-v1", "no interface card"),
        (f"simulated:{ARM}:make", "is a robot already"),
        ("simulated:palaestra/BallIntercep-v0", "nearest: palaestra/BallIntercept-v0"),
    ],
)
def test_a_robot_that_is_none_is_refused(drive, url, env, words):
    code, out, err = drive(env, "--connect", url, "--yes")
    assert code == 2 and out == "" and words in err


def test_the_secret_word_is_not_stored(drive):
    env = make_env(BALL)
    episode = Episode(0, BALL, env.observation_space, env.action_space, env.unwrapped.interface, 30.0)
    with PolicyServer(Steady(), episode, "tcp://127.0.0.1:*", token="sesame") as server:
        call = (BALL, "--connect", server.bind, "--clock", "lockstep")
        code, _, err = drive(*call, "--token", "sesam")
        assert code == 2 and "UNAUTHORIZED" in err
        code, out, _ = drive(*call, "--token", "sesame", "--json")
        named = run(BALL, f"remote:url={server.bind},token=sesame", episodes=1)
    assert code == 0 and not named.failed
    rows = Store().episodes()
    assert len(rows) == 2 and not any("sesame" in repr(row) for row in rows) and "sesame" not in out


def test_a_small_network_is_served_on_one_thread_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    before, network = torch.get_num_threads(), make_agent("flow", BALL)
    try:
        for asked, given in ((2, 2), (None, 1)):
            _use_threads(network, asked)
            assert torch.get_num_threads() == given
    finally:
        torch.set_num_threads(before)


def spawn(*arguments, cwd=None):
    return subprocess.Popen(
        [sys.executable, "-m", "palaestra", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_holds_the_robot_at_once_and_says_what_is_stored(url, tmp_path, how):
    (tmp_path / "logged.py").write_text(
        textwrap.dedent("""
        import time
        from palaestra.runtime.robots.example_arm import ExampleArm
        from palaestra.runtime.robots.watchdog import Watchdog

        class Arm(ExampleArm):
            def say(self, what):
                with open("log", "a") as log:
                    print(time.monotonic(), what, file=log)
            def command(self, action):
                self.say("command")
                super().command(action)
            def hold(self):
                self.say("hold")
                super().hold()

        def make():
            return Watchdog(Arm(), deadline_ms=60_000)  # so that it is not the watchdog who holds
        """)
    )
    process = spawn("drive", "robot:logged:make", "--connect", url, "--yes", "-n", "3", cwd=tmp_path)
    log = tmp_path / "log"
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("command") > 20):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.01)
    struck = time.monotonic()
    process.send_signal(how)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 1 and out == "", err
    assert "was told to hold; 0 of 3 episodes are finished" in err and "Traceback" not in err
    after = [line.split() for line in log.read_text().splitlines() if float(line.split()[0]) > struck]
    held = next(float(at) for at, what in after if what == "hold")
    assert after[-1][1] == "hold" and held - struck < 0.5, "before the threads are joined and the connection is closed"


@pytest.mark.slow
def test_deployment_on_one_machine_survives_the_death_of_its_server(tmp_path):
    """Three processes: a server, a driver, a robot. The server is killed in the middle of an episode and comes back."""

    def serve(bind):
        process = spawn("serve", "flow", "--env", BALL, "--bind", bind, "--json")
        return process, json.loads(process.stdout.readline())["url"]

    server, url = serve("tcp://127.0.0.1:*")
    driver = spawn("drive", f"simulated:{BALL}", "--connect", url, "-n", "8", "--json")
    heard: list[str] = []
    threading.Thread(target=lambda: heard.extend(iter(driver.stderr.readline, "")), daemon=True).start()

    def wait_for(words, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not any(re.search(words, line) for line in list(heard)):
            assert driver.poll() is None and time.monotonic() < deadline, heard
            time.sleep(0.02)
        return time.monotonic()

    try:
        wait_for("episode 2 of 8")
        time.sleep(0.5)
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        wait_for("does not answer")
        server, _ = serve(url)
        back = time.monotonic()
        assert wait_for("is back") - back < 4.0
        document = json.loads(driver.stdout.read())
        assert driver.wait(60) == 0
    finally:
        for process in (server, driver):
            process.kill()
            process.wait()
    assert (document["episodes"], document["failed"], document["reconnects"]) == (8, 0, 1)
    assert document["success"]["mean"] >= 5 / 8, "the first and the last ones at least"
