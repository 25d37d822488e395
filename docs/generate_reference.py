"""Generates `docs/reference.md` from the command-line parsers and the error tree: `make api`."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ps_lab import cli as lab
from ps_server import cli as server
from ps_wire import errors
from ps_worker import cli as worker
from ps_worker import settings

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference of the commands

Made from the commands themselves by `make api`; `--help` of each says the same. Every option of `ps-server`
and `ps-worker` has an environment variable, which the option goes before. What a script may call is in
[api.md](api.md).
"""
PROGRAMS = {"ps-server": server.app, "ps-worker": worker.app, "ps-lab": lab.app}
NOTES = {
    "ps-worker": """Options come before the script, the script's own come after it; `ps-worker -m pkg.mod`
runs a module, as `python -m` does. Where all servers are on loopback and `OMP_NUM_THREADS` is not set, each
worker gets its part of the cores; elsewhere torch takes no more threads than the container has processors.
With `PS_TRACE=FOLDER` every server and worker writes a
[trace](performance.md#where-the-time-of-a-round-goes) of its threads when it ends.
"""
}
# Settings of a worker without an option: variable, default in seconds, meaning.
ONLY_VARIABLES = (
    ("PS_CONNECT_LIMIT", settings.CONNECT_LIMIT_S, "seconds that a server may take to answer at the start"),
    ("PS_START_LIMIT", settings.START_LIMIT_S, "seconds that the job may take to start"),
    ("PS_RETRY_LIMIT", settings.RETRY_LIMIT_S, "seconds that a broken data connection is tried again"),
    ("PS_WAIT", settings.WAIT_S, "seconds that a reader waits for its job to start"),
)
CODES = {
    0: "done; also a server that was stopped with SIGTERM, without `--stopped-code`",
    1: "anything else, such as an error in the script",
    64: "usage: an option, address or name that makes no sense",
    65: "a snapshot is missing, damaged or of another release; an older one that is whole is named",
    69: "a server cannot be reached or listen, or the job did not start in time",
    75: "a worker or a launch was stopped by SIGTERM before the end, or a server with `--stopped-code 75`: "
    "run it again",
    78: "refused: a job with live workers is not dropped, wrong shard order or count, another model, "
    "optimizer or consistency than the job has, no free place, memory limit, certificates, token, a `--host` "
    "that would let anybody in",
    130: "Ctrl-C",
}
CODES_HEAD = """## Exit codes

An error of the project that ends a script is one line, below the line of the script that it came through; one
of the script is shown as `python` shows it. A script's own `sys.exit(N)` is kept. `ps-lab launch` ends with
the code of the process that failed first.

| code | meaning |
|---|---|"""


def generate() -> str:
    """The text of the page."""
    parts = [HEAD]
    for program, app in PROGRAMS.items():
        parts += _described(program, typer.main.get_command(app), "##")
        if program == "ps-worker":
            parts.append(_variables())
    parts.append(CODES_HEAD)
    known = {cls.exit_code for cls in errors.STATUS} | {0, 75, 130}
    assert known == CODES.keys(), "an exit code has no meaning here"
    parts += [f"| {code} | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(parts) + "\n"


def _described(name: str, command: Any, level: str) -> Iterator[str]:
    yield f"{level} `{name}`\n"
    yield f"{_text(command.help)}\n"
    if note := NOTES.get(name):
        yield note
    if hasattr(command, "commands"):
        for word, part in command.commands.items():
            yield from _described(f"{name} {word}", part, level if level == "####" else level + "#")
        return
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    rows = [row for row in rows if row]
    if rows:
        yield "| option | variable | default | meaning |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"


def _row(parameter: Any) -> str:
    if parameter.param_type_name != "option" or parameter.name == "help":
        return ""
    value_of = f" {parameter.metavar}" if parameter.metavar else ""
    names = ", ".join(f"`{name}{value_of}`" for name in (*parameter.opts, *parameter.secondary_opts))
    names = names.replace("|", "\\|")
    shown = parameter.show_default if isinstance(parameter.show_default, str) else None
    default = parameter.default if shown is None else shown
    if parameter.is_flag:
        default = "on" if default else "off"
    value = getattr(default, "value", default)
    cells = (
        names,
        f"`{parameter.envvar}`" if parameter.envvar else "",
        "" if value is None or callable(value) else f"`{value}`",
        _text(parameter.help).replace("|", "\\|"),
    )
    return f"| {' | '.join(cells)} |"


def _text(doc: str | None) -> str:
    assert doc, "a command or an option has no help"
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", doc.replace("\b", ""))]
    return "\n\n".join(f"`{part}`" if part.startswith("ps-") else part for part in parts)


def _variables() -> str:
    rows = [f"| `{name}` | `{default:g}` | {meaning} |" for name, default, meaning in ONLY_VARIABLES]
    return "\n".join(
        [
            "Settings without an option, which `ps.connect()` takes as keywords:\n",
            "| variable | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(generate())
    sys.stdout.write(f"generated {PAGE.name}\n")
