"""`ps-lab top`: what a person types to watch a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ps_lab.options import SERVERS, Servers, TlsDir, TokenFile
from ps_wire.access.access import read
from ps_wire.spec.address import parse_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ps_lab.top.view import View


def top(
    servers: Servers = SERVERS,
    serve: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Not on the terminal, but as a web page there; 0: any free port.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="With --serve: address to listen on. The page has no login.")
    ] = "127.0.0.1",
    recorded: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Plays back a run that was recorded there: the folder of PS_RECORD, or one below runs/ of "
            "ps-lab compare.",
            show_default=False,
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0.01, max=1000.0, help="With --from: times as fast as the run was.")
    ] = 1.0,
    token_file: TokenFile = None,
    tls_dir: TlsDir = None,
    job: Annotated[
        str | None,
        typer.Option(envvar="PS_JOB", help="Shows this one alone; the token may be this job's."),
    ] = None,
) -> None:
    """Watch jobs live: workers as lanes, who waits for whom, servers, staleness, events.

    On the terminal, or with --serve as a web page that this command serves until Ctrl-C.

    It looks once a second, and less often where a look takes longer than 10 ms.

    Exit codes: 64 stdout is no terminal, or --from has no recorded steps; 69 a server does not answer the
    first time or the port of --serve is taken, 78 the list has the wrong length or order, or a server wants
    other certificates or another token; 130 Ctrl-C.
    """
    from ps_lab.cluster.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.status.observer import LOOK_LIMIT_S, Observer  # noqa: PLC0415
    from ps_lab.status.status import Status  # noqa: PLC0415
    from ps_lab.top.live import show, views  # noqa: PLC0415
    from ps_lab.top.web import serve as serve_page  # noqa: PLC0415

    def draw(moments: Iterator[View]) -> None:
        if serve is None:
            show(make_console(), moments)
        else:
            serve_page(moments, host, serve, say=lambda url: print(url, flush=True))

    if recorded is not None:
        from ps_lab.top.playback import frames, open_playback  # noqa: PLC0415

        draw(frames(open_playback(recorded).only(job), str(recorded), speed))
        return
    access = read(token_file=token_file, tls_dir=tls_dir, job=job, complain=typer.echo)
    addresses = parse_servers(servers)
    with Observer(addresses, access, timeout_s=LOOK_LIMIT_S) as observer:

        def look() -> Status:
            answer = observer.look()
            return answer if job is None else answer.only(job)

        draw(views(look, ", ".join(addresses)))
