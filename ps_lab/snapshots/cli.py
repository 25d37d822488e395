"""`ps-lab snapshot`: what a person types about snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ps_lab.options import TlsDir, TokenFile
from ps_wire.access.access import read
from ps_wire.spec.address import parse_servers

app = typer.Typer(
    name="snapshot", help="Take, list, check, export and restore snapshots of jobs.", no_args_is_help=True
)

Url: TypeAlias = Annotated[
    str,
    typer.Argument(
        envvar="PS_SNAPSHOT_DIR",
        help="Where snapshots are: --snapshot-dir of the servers.",
        show_default=False,
    ),
]
Job: TypeAlias = Annotated[str | None, typer.Option(envvar="PS_JOB", help="Whose.", show_default=False)]
Name: TypeAlias = Annotated[
    str | None, typer.Option("--snapshot", help="Its name, as `list` shows it.", show_default="the newest")
]
Servers: TypeAlias = Annotated[
    str, typer.Option(envvar="PS_SERVERS", help="HOST:PORT,HOST:PORT in shard order.", show_default=False)
]


@app.command()
def take(
    servers: Servers,
    job: Annotated[str, typer.Option(envvar="PS_JOB", help="The job, which runs.", show_default=False)],
    token_file: TokenFile = None,
    tls_dir: TlsDir = None,
) -> None:
    """Take a snapshot of a running job now, which goes on meanwhile.

    Exit codes: 0, 1 it was not taken, 69 the servers do not answer, 78 they have no --snapshot-dir.
    """
    from ps_lab.cluster.display import make_console, make_error_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.snapshots.calls import take as take_one  # noqa: PLC0415
    from ps_lab.snapshots.display import show  # noqa: PLC0415

    access = read(token_file=token_file, tls_dir=tls_dir, job=job, complain=typer.echo)
    last = show(take_one(parse_servers(servers)[0], job, access), make_error_console())
    make_console().print(f"{last.snapshot}  step {last.step}  {last.total_bytes} bytes", soft_wrap=True)


@app.command(name="list")
def list_all(
    url: Url,
    job: Job = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, for programs.")] = False,
) -> None:
    """List snapshots, the oldest first: of all jobs, or of one.

    Exit codes: 0, also if there are none; 64 no such kind of URL.
    """
    from ps_lab.cluster.display import make_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.snapshots.display import table  # noqa: PLC0415
    from ps_lab.snapshots.snapshots import find  # noqa: PLC0415
    from ps_wire.snapshot.store import SnapshotStore  # noqa: PLC0415

    found = find(SnapshotStore(url), job)
    if as_json:
        print(json.dumps([one.to_json() for one in found], indent=2))
    else:
        make_console().print(table(found))


@app.command()
def verify(url: Url, job: Job = None, snapshot: Name = None) -> None:
    """Read all files of a snapshot and compare them with what was written.

    Exit codes: 0, 65 it is corrupt, truncated, missing or of another release (an older valid one is named).
    """
    from ps_lab.snapshots.snapshots import choose  # noqa: PLC0415 - heavy: not for --help
    from ps_wire.snapshot.store import SnapshotStore  # noqa: PLC0415

    store = SnapshotStore(url)
    whose, name = choose(store, job, snapshot)
    manifest = store.verify(whose, name)
    count = len(manifest.files)
    what = f"{count} files, {manifest.total_bytes} bytes, step {manifest.step}"
    print(f"{store.where(whose, name)} is whole: {what}")


@app.command()
def restore(
    servers: Servers,
    url: Annotated[str, typer.Option("--from", help="Where the snapshot is.", show_default=False)],
    job: Job = None,
    snapshot: Name = None,
    token_file: TokenFile = None,
    tls_dir: TlsDir = None,
) -> None:
    """Bring a snapshot to servers, each its part, and have the job go on from it, whether it runs or not.

    Exit codes: 0, 65 the snapshot is not whole (nothing was sent), 69 a server does not answer, 78 the
    servers have no --snapshot-dir.
    """
    from ps_lab.cluster.display import make_console, make_error_console  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.snapshots.calls import restore as restore_one  # noqa: PLC0415
    from ps_lab.snapshots.display import show  # noqa: PLC0415
    from ps_lab.snapshots.snapshots import choose  # noqa: PLC0415
    from ps_wire.snapshot.store import SnapshotStore  # noqa: PLC0415

    store = SnapshotStore(url)
    whose, name = choose(store, job, snapshot)
    access = read(token_file=token_file, tls_dir=tls_dir, job=whose, complain=typer.echo)
    last = show(restore_one(parse_servers(servers), store, whose, name, access), make_error_console())
    make_console().print(f"job {whose} goes on from step {last.step}, as {last.snapshot}", soft_wrap=True)


@app.command()
def export(
    url: Url,
    to: Annotated[Path, typer.Option(help="The file: model.safetensors.", show_default=False)],
    job: Job = None,
    snapshot: Name = None,
    table: Annotated[
        int | None, typer.Option(min=0, help="Only this one, of several.", show_default=False)
    ] = None,
) -> None:
    """Make one safetensors file of a snapshot's weights and buffers, with names as in `state_dict`.

    Exit codes: 0, 64 there are several jobs, or there is no such table; 65 the snapshot is not whole.
    """
    from ps_lab.snapshots.snapshots import choose  # noqa: PLC0415 - heavy: not for --help
    from ps_lab.snapshots.snapshots import export as export_one  # noqa: PLC0415
    from ps_wire.snapshot.store import SnapshotStore  # noqa: PLC0415

    store = SnapshotStore(url)
    whose, name = choose(store, job, snapshot)
    shapes = export_one(store, whose, name, to, table=table)
    print(f"{to}: {len(shapes)} tensors of {store.where(whose, name)}")
