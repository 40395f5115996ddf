"""``palaestra serve``: an agent behind a socket, for simulators, robots, and clients of GR00T and openpi."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .console import err, out, quiet

if TYPE_CHECKING:
    from ...agents.agent import Agent

_SMALL = 30_000_000  # parameters; about 10 ms of one core each time they are used


def serve(
    agent: Annotated[
        str | None, typer.Argument(help="Agent: a name (`palaestra list agents`) or module:Class.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment that the agent is served for.")] = None,
    bind: Annotated[str, typer.Option(help="Endpoint of the native and the GR00T dialect.")] = "tcp://127.0.0.1:5600",
    openpi: Annotated[str | None, typer.Option(help="Also answer openpi clients, at HOST:PORT.")] = None,
    openpi_streaming: Annotated[
        bool, typer.Option("--openpi-streaming", help="Send openpi clients parts as well (FASTER's extension).")
    ] = False,
    token: Annotated[str | None, typer.Option(envvar="PALAESTRA_TOKEN", help="A word that clients must know.")] = None,
    new_key: Annotated[
        Path | None, typer.Option(help="Make a pair of keys, NAME.key and NAME.key_secret, and end.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The server's .key_secret file: encrypts with CURVE.")] = None,
    allow: Annotated[list[Path] | None, typer.Option(help="The .key file of a client; may be repeated.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines in without keys. Whoever reaches it may use it.")
    ] = False,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="A newer observation stops a plan at its next step.")
    ] = False,
    batch_window_ms: Annotated[
        float, typer.Option(help="How long a plan waits to be made together with others.", min=0, max=100)
    ] = 0.0,
    threads: Annotated[
        int | None, typer.Option(help="Threads of the agent's network (default: 1 for a small one).", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of clients that know no episodes (GR00T, openpi).", min=0)] = 0,
    backend: Annotated[str, typer.Option(help="Methods on the agent's network, e.g. adapter=lora:path=DIR.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON document.")] = False,
) -> None:
    """Serve AGENT until Ctrl-C, for `palaestra drive`, or wherever an agent is named as `remote:url=tcp://HOST:PORT`.

    The port answers palaestra and Isaac-GR00T clients; `--openpi` opens a second one for openpi clients. Without keys
    only this machine can connect. Exit code 0: served until stopped; 1: the port is taken; 2: the call was wrong.

    Examples:

    `palaestra serve random --env palaestra/BallIntercept-v0`

    `palaestra serve flow --env palaestra/BallIntercept-v0 --openpi 127.0.0.1:8000`

    `palaestra serve --new-key robot`
    """
    if new_key is not None:
        from ..keys import new_key as make

        public, secret = make(new_key)
        out.print(f"to give away: {public}\nto keep:      {secret}", soft_wrap=True)
        return
    if agent is None or env is None:
        raise ValueError("name an agent and what it is served for: palaestra serve AGENT --env ENV")
    if allow and key is None:
        raise ValueError("--allow lets in clients with keys, which needs --key with the server's own")
    with quiet():
        from ...agents.agent import Episode
        from ...envs.conversion import interface_of
        from ...models.backend import Backend
        from ..fronts.openpi import OpenpiServer
        from ..keys import ServerKeys
        from ..registry import make_agent, make_env
        from ..server import PolicyServer, ServerFailed

        served = make_agent(agent, env, Backend.parse(backend).require_running())
        _use_threads(served, threads)
        world = make_env(env)
    card = interface_of(world)
    episode = Episode(
        seed=seed,
        env_id=env,
        observation_space=world.observation_space,
        action_space=world.action_space,
        interface=card,
        control_hz=card.control_hz if card else world.metadata.get("render_fps"),
        instruction=getattr(world.unwrapped, "instruction", None),
    )
    world.close()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with ExitStack() as stack:
            server = PolicyServer(
                served,
                episode,
                bind,
                keys=ServerKeys.read(key, allow or []) if key else None,
                token=token,
                insecure=insecure,
                preempt=preempt,
                batch_window_ms=batch_window_ms,
            )
            stack.enter_context(server)
            addresses = {"agent": agent, "env": env, "url": server.bind, "openpi": None}
            if openpi:
                host, port = _host_port(openpi)
                front = OpenpiServer(server, host, port, api_key=token, streaming=openpi_streaming, insecure=insecure)
                stack.enter_context(front)
                addresses["openpi"] = f"ws://{front.host}:{front.port}"
            if as_json:
                typer.echo(json.dumps(addresses))
            else:
                out.print(f"serving [bold]{agent}[/] for [bold]{env}[/] at {server.bind}", soft_wrap=True)
                keys = f" --key YOUR.key_secret --server-key {key.with_suffix('.key').name}" if key else ""
                out.print(
                    f"  palaestra drive simulated:{env} --connect {_from_elsewhere(server.bind)}{keys}", soft_wrap=True
                )
                if openpi:
                    out.print(f"  openpi clients: {addresses['openpi']}", soft_wrap=True)
            while not stop.wait(1.0):
                pass
    except KeyboardInterrupt:
        pass
    except ServerFailed as error:
        err.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None
    except OSError as error:
        err.print(f"[red]error:[/] {error.strerror or error}", soft_wrap=True)
        raise typer.Exit(1) from None


def _use_threads(agent: Agent, threads: int | None) -> None:
    """A small network gains nothing by a second thread, and where cores are shared each waits for the other."""
    import torch

    from ...agents.network import NetworkAgent

    if threads is None and isinstance(agent, NetworkAgent) and "OMP_NUM_THREADS" not in os.environ:
        parameters = sum(p.numel() for network in agent.networks.values() for p in network.parameters())
        threads = 1 if parameters < _SMALL else None
    if threads is not None:
        torch.set_num_threads(threads)


def _from_elsewhere(bind: str) -> str:
    """The endpoint as other machines write it: one that is bound to every network card has this machine's name."""
    return bind.replace("//0.0.0.0:", f"//{socket.gethostname()}:").replace("//[::]:", f"//{socket.gethostname()}:")


def _host_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 2**16):
        raise ValueError(f"openpi={text!r}, expected HOST:PORT, as in 127.0.0.1:8000")
    return host, int(port)
