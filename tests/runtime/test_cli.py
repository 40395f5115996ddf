"""The command line: JSON and nothing else on stdout, sentences on stderr, exit codes, and what the README promises."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.envs.offscreen import available
from palaestra.runtime.cli.main import main

BALL = "palaestra/BallIntercept-v0"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def palaestra(monkeypatch, capfd):
    """Run the command; returns exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["palaestra", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        code = stop.value.code
        return code if isinstance(code, int) else 0, out, err

    return call


def test_json_is_one_document_with_the_promised_keys(palaestra):
    code, out, _ = palaestra("run", BALL, "expert", "-n", "3", "--json")
    document = json.loads(out)
    assert code == 0
    assert {"env", "agent", "clock", "episodes", "success", "score", "failed", "seconds", "run_id"} <= document.keys()
    assert document["success"]["mean"] == 1.0 and document["success"]["low"] < 0.5, "three episodes prove little"


def test_a_run_shows_intervals_costs_and_where_it_is_kept(palaestra):
    code, out, _ = palaestra("run", BALL, "random", "-n", "3", "--clock", "virtual", "--profile", "xvla-4090")
    assert code == 0
    for words in ("95 % interval", "time to first action", "profile xvla-4090", "stored as run", "palaestra.db"):
        assert words in out
    run_id = re.search(r"stored as run (\S+)", out)[1]
    code, out, _ = palaestra("episodes", "--run", run_id, "--json")
    assert code == 0 and [row["seed"] for row in json.loads(out)] == [0, 1, 2]
    code, out, _ = palaestra("episodes", "--agent", "random")
    assert code == 0 and run_id in out


def test_the_privileged_expert_is_marked(palaestra):
    assert "privileged" in palaestra("run", BALL, "expert", "-n", "1")[1]
    assert "expert *" in palaestra("episodes")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["palaestra/BalIntercept-v0"], "nearest: palaestra/BallIntercept-v0"),
        ([BALL, "flwo"], "nearest: flow"),
        ([BALL, "zero", "--clock", "wal"], "clock='wal'"),
        ([BALL, "zero", "--profile", "pi05-4090"], "needs clock='virtual'"),
        ([BALL, "zero", "--backend", "optim=adamw"], "optim"),
        ([BALL, "zero", "--backend", "adaptor=lora"], "adaptor"),
        ([BALL, "zero", "--video", "film.gif"], "ends in .mp4"),
        ([BALL, "zero", "--video", "/no/such/folder/film.mp4"], "does not exist"),
        ([BALL, "zero", "--episodes", "0"], "--episodes"),
        ([BALL + ":pixels=-3", "zero"], "pixels=-3"),
        ([BALL, "flow:checkpoint=/nowhere.safetensors"], "/nowhere"),
        (["CartPole-v1", "expert"], "has no scripted expert"),
    ],
)
def test_a_wrong_call_gets_a_sentence_and_code_2(palaestra, arguments, words):
    code, out, err = palaestra("run", *arguments)
    assert code == 2 and out == "" and words in err and "Traceback" not in err
    assert palaestra("episodes", "--json")[1].strip() == "[]", "nothing was run"


def test_failed_episodes_give_code_1(palaestra, tmp_path, monkeypatch):
    (tmp_path / "wild.py").write_text(
        "import numpy, palaestra\n"
        "class Wild(palaestra.StepAgent):\n"
        "    def act(self, memory, observation): return numpy.full(2, 9.0, 'float32')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = palaestra("run", BALL, "wild:Wild", "-n", "2")
    assert code == 1 and "outside the action space" in out


def test_a_film_is_made_and_holds_pictures(palaestra, tmp_path):
    if not available():
        pytest.skip("no OpenGL here")
    import imageio_ffmpeg

    film = tmp_path / "film.mp4"
    code, out, _ = palaestra("run", BALL, "expert", "-n", "4", "--workers", "2", "--video", str(film))
    assert code == 0 and str(film) in out
    frames = imageio_ffmpeg.read_frames(str(film))
    meta = next(frames)
    assert sum(1 for _ in frames) > 3 * 30, "three episodes were filmed"
    assert meta["codec"] == "h264"
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"], "no parts are left"


def test_a_data_set_is_recorded_and_minari_reads_it(palaestra, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    assert palaestra("run", BALL, "expert", "-n", "2", "--record", str(tmp_path))[0] == 0
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (name,) = minari.list_local_datasets()
    episodes = list(minari.load_dataset(name))
    assert len(episodes) == 2 and all(e.rewards[-1] == 1.0 for e in episodes)


@pytest.mark.parametrize("what", ["envs", "agents", "profiles"])
def test_lists(palaestra, what):
    code, out, _ = palaestra("list", what, "--json")
    assert code == 0 and len(json.loads(out)) >= 5


def test_doctor_knows_this_machine(palaestra):
    code, out, _ = palaestra("doctor", "--json")
    parts = {check["part"]: check["state"] for check in json.loads(out)}
    assert code == 0 and parts["mujoco"] == "ok" and parts["rendering"] == ("ok" if available() else "missing")


def test_every_command_has_help_with_an_example_and_a_version(palaestra):
    assert re.match(r"palaestra \d", palaestra("--version")[1])
    for command in (
        ["run"],
        ["episodes"],
        ["doctor"],
        ["list", "envs"],
        ["list", "profiles"],
        ["train"],
        ["drive"],
        ["study", "run"],
    ):
        code, out, _ = palaestra(*command, "--help")
        assert code == 0 and "Example" in out


def test_third_party_chatter_stays_off_stdout(tmp_path):
    """A package that prints while it is imported, and an environment that prints from C and Python."""
    (tmp_path / "chatty.py").write_text(
        "import gymnasium, os\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "print('hello from the community')\n"
        "class Chatty(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        os.write(1, b'from C'); print('step')\n"
        "        return super().step(action)\n"
        "gymnasium.register('chatty/C-v0', Chatty, max_episode_steps=20)\n"
    )
    for workers in ("1", "2"):
        command = [sys.executable, "-m", "palaestra", "run", "chatty/C-v0", "random", "-n", "2", "--json"]
        command += ["--workers", workers]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["episodes"] == 2


def readme_blocks() -> list[str]:
    return re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_commands_in_the_readme_parse(palaestra):
    """Each names commands and options that exist; the long ones are run by CI as they are written."""
    lines = [line.split("#")[0].split() for block in readme_blocks() for line in block.splitlines()]
    commands = [line[1:] for line in lines if line[:1] == ["palaestra"]]
    assert len(commands) >= 8
    for command in commands:
        if command[0] == "run" and "Lift" not in command[1] and command[1] != "CartPole-v1":
            command = [*command, "--episodes", "1", "--lanes", "1"]
        elif command[0] in ("run", "train", "serve", "drive", "study"):
            command = [*command, "--help"]
        assert palaestra(*command)[0] == 0, command


def test_the_agent_of_the_readme_runs_as_it_stands(palaestra, tmp_path, monkeypatch):
    (block,) = [block for block in readme_blocks() if "class Centre" in block]
    (tmp_path / "centre.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    assert palaestra("run", BALL, "centre:Centre", "-n", "1")[0] == 0


def test_the_command_is_installed():
    if shutil.which("palaestra") is None:
        pytest.skip("the package is not installed")
    assert subprocess.run(["palaestra", "--version"], check=True, capture_output=True).returncode == 0


def test_training_that_diverges_ends_in_a_sentence_and_code_1(palaestra, tmp_path):
    options = ("--demonstrations", "20", "--steps", "30", "--out", str(tmp_path), "--backend", "optim=adamw:lr=1e30")
    code, _, err = palaestra("train", "flow", "palaestra/BallIntercept-v0", *options)
    assert code == 1 and "training came to nothing" in err and "Traceback" not in err
