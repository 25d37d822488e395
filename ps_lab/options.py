"""The options by which commands reach servers: where they are, and what lets a person in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ps_wire.access.access import TLS_DIR, TOKEN_FILE

SERVERS = "127.0.0.1:50051"  # where nothing is said

Servers: TypeAlias = Annotated[
    str, typer.Option(envvar="PS_SERVERS", help="HOST:PORT,HOST:PORT in shard order.")
]
TokenFile: TypeAlias = Annotated[
    Path | None, typer.Option(envvar=TOKEN_FILE, help="Holds the token of the service.", show_default=False)
]
TlsDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(envvar=TLS_DIR, help="Folder with ca.crt, tls.crt and tls.key.", show_default=False),
]
