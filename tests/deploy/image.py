"""`python -m tests.deploy.image`: builds the container image, and runs a job in it as its users do.

With a root file system that is read-only, without capabilities, as user 10001: a server becomes healthy, a
worker trains the example, SIGTERM ends the server with 0, and its next container takes up what it handed
over. With podman or docker, whichever answers; without either it says so and ends with 0. A build that fails
ends with 1, and with what may help.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.until import until

ROOT = Path(__file__).resolve().parents[2]
IMAGE = f"torch-parameter-server:{version('torch-parameter-server')}"
NAME, VOLUME = "ps-image-check", "ps-image-check"
BUILD_LIMIT_S, LIMIT_S = 3600.0, 300.0
HELP = (
    "The lines above say at which step. Where no registry is reached, BUILD names another base; where the "
    "host is restricted, podman wants runc and lower limits: deploy/README.md, under The image"
)
LOCKED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp")


def engine() -> str | None:
    """The first of podman and docker that answers."""
    for name in ("podman", "docker"):
        if (
            shutil.which(name)
            and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0
        ):
            return name
    return None


class Engine:
    """Runs containers of the image.

    Attributes:
        name: of the command.
    """

    def __init__(self, name: str, options: Sequence[str]) -> None:
        self.name = name
        self._options = options

    def __call__(self, *words: str, limit_s: float = LIMIT_S) -> str:
        """What it says; an error is raised."""
        done = subprocess.run(
            [self.name, *words], capture_output=True, text=True, timeout=limit_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def build(self, arguments: Sequence[str]) -> None:
        """Makes the image; its layers are found again where nothing has changed."""
        form = ("--format", "docker") if self.name == "podman" else ()  # OCI's has no HEALTHCHECK
        words = ("build", *form, *arguments, "-f", "deploy/docker/Dockerfile", "-t", IMAGE, ".")
        subprocess.run([self.name, *words], cwd=ROOT, timeout=BUILD_LIMIT_S, check=True)

    def begin_server(self) -> None:
        """A container with the volume; returns when the server is healthy."""
        place = ("--volume", f"{VOLUME}:/var/lib/ps", "--env", "PS_STATE_DIR=/var/lib/ps/state")
        self("run", "--detach", "--name", NAME, "--network", "none", *LOCKED, *self._options, *place, IMAGE)
        ask = [self.name, "exec", NAME, "ps-lab", "health", "127.0.0.1:50051"]
        until(
            lambda: subprocess.run(ask, capture_output=True, check=False).returncode == 0,
            "the server is healthy",
        )

    def end_server(self) -> str:
        """Stops it by SIGTERM, which it ends with 0; what it has said."""
        self("stop", "--time", "60", NAME)
        said = subprocess.run([self.name, "logs", NAME], capture_output=True, text=True, check=True)
        code = self("inspect", "--format", "{{.State.ExitCode}}", NAME)
        assert code == "0", f"ended with {code}\n{said.stdout}{said.stderr}"
        self("rm", NAME)
        return said.stdout + said.stderr

    def train(self) -> str:
        """A worker beside the server, with its network."""
        return self("run", "--rm", "--network", f"container:{NAME}", *LOCKED, *self._options, IMAGE,
                    "ps-worker", "/opt/ps/examples/digits.py", "--epochs", "1")  # fmt: skip

    def clean(self) -> None:
        """Removes what a check has made, but for the image."""
        for words in (("rm", "--force", NAME), ("volume", "rm", "--force", VOLUME)):
            subprocess.run([self.name, *words], capture_output=True, check=False)


def check(run: Engine) -> None:
    """The life of a job in containers."""
    identity = ("run", "--rm", "--network", "none", *LOCKED, *run._options, IMAGE)
    assert run(*identity, "id", "-u") == "10001"
    run(
        *identity,
        "python",
        "-c",
        "import s3fs; from ps_wire.process.kernels import FOUND; assert 'compiled' in FOUND",
    )
    run.begin_server()
    assert "test accuracy" in run.train()
    run.end_server()
    run.begin_server()
    names = run("exec", NAME, "ls", "/var/lib/ps/state")
    assert "hand-off-0.safetensors.used" in names, names
    run.end_server()


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--build", default="", help="options of the build, such as --build-arg BASE_IMAGE=..."
    )
    parser.add_argument("--run", default="", help="options of each run, such as --ulimit nofile=20000:20000")
    options = parser.parse_args()
    name = engine()
    if name is None:
        print(
            "make image is skipped: neither podman nor docker answers here (`podman info`, `docker info`). "
            "Debian's package podman is enough, without a daemon"
        )
        return 0
    run = Engine(name, shlex.split(options.run))
    began_s = time.monotonic()
    try:
        run.build(shlex.split(options.build))
    except subprocess.CalledProcessError as error:
        print(f"make image: the build ended with {error.returncode}. {HELP}")
        return 1
    built_s = time.monotonic() - began_s
    run.clean()
    try:
        check(run)
    finally:
        run.clean()
    size = int(run("image", "inspect", "--format", "{{.Size}}", IMAGE))
    print(f"{IMAGE}: built in {built_s:.0f} s, {size / 1e6:.0f} MB, trained and came back, with {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
