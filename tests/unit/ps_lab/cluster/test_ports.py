"""Ports for processes that are about to be started."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ps_lab.cluster.ports import HOST, PORTS, PortChooser, free_ports
from ps_wire.errors import Unavailable
from tests.until import LIMIT_S

FEW = range(40)
CHOOSES = """
import sys
from pathlib import Path
from ps_lab.cluster.ports import PortChooser
print(*PortChooser(Path(sys.argv[1]), range(int(sys.argv[2])), lambda _: True).choose(int(sys.argv[3])))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ports"


def of_few(file: Path) -> PortChooser:
    """Nobody listens on any of them."""
    return PortChooser(file, FEW, lambda _: True)


def in_another_process(file: Path, count: int) -> set[int]:
    """What `of_few` has chosen there; it has ended."""
    words = (str(file), str(FEW.stop), str(count))
    done = subprocess.run(
        [sys.executable, "-c", CHOOSES, *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return {int(port) for port in done.stdout.split()}


def test_they_are_distinct_can_be_bound_and_are_not_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert set(ports) <= set(PORTS)
    for port in ports:
        with socket.socket() as probe:
            probe.bind((HOST, port))


def test_one_on_which_somebody_listens_is_not_chosen(file: Path) -> None:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        taken = listening.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"no 1 free ports in {taken}\.\.{taken} on 127.0.0.1"):
            PortChooser(file, range(taken, taken + 1)).choose(1)


def test_none_is_chosen_twice_while_there_are_others(file: Path) -> None:
    chooser = of_few(file)
    assert {*chooser.choose(30), *chooser.choose(10)} == set(FEW)
    assert len(set(chooser.choose(30))) == 30


def test_those_that_are_left_come_before_those_of_the_second_time(file: Path) -> None:
    chooser = of_few(file)
    first = chooser.choose(30)
    both = chooser.choose(20)
    assert len(set(both)) == 20
    assert set(FEW) <= {*first, *both}


def test_what_one_process_has_chosen_no_other_chooses_while_it_runs(file: Path) -> None:
    chooser = of_few(file)
    ours, theirs = set(chooser.choose(20)), in_another_process(file, 20)
    assert ours | theirs == set(FEW)
    assert set(chooser.choose(20)) == theirs, "of one that has ended they are free again"


def test_only_who_has_a_port_looks_whether_it_is_free_and_keeps_it_if_it_is(file: Path) -> None:
    """To look is to bind it for a moment: a server whose port it is could not, meanwhile."""
    mine = set(of_few(file).choose(len(FEW) - 2))
    others = (
        "import sys; from pathlib import Path; from ps_lab.cluster.ports import PortChooser\n"
        "from ps_wire.errors import Unavailable\n"
        "looked = []\n"
        "look = lambda port: looked.append(port)\n"  # and says that somebody listens
        "chooser = PortChooser(Path(sys.argv[1]), range(int(sys.argv[2])), look)\n"
        "try: chooser.choose(1)\n"
        "except Unavailable: print(*looked, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", others, str(file), str(FEW.stop)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        looked = {int(port) for port in process.stdout.readline().split()}
        left = set(FEW) - mine
        assert looked == left
        assert in_another_process(file, 2) == left  # which the one that found them taken holds no longer
        process.communicate("\n", timeout=LIMIT_S)


def test_once_all_have_been_chosen_they_are_free_for_others_but_for_the_last(file: Path) -> None:
    chooser = of_few(file)
    chooser.choose(40)
    last = set(chooser.choose(10))
    assert in_another_process(file, 30) == set(FEW) - last


@pytest.mark.parametrize("how", ["no folder", "a link"])
def test_without_a_file_it_chooses_for_itself(file: Path, how: str) -> None:
    path = file / "missing"
    if how == "a link":
        path = file
        path.symlink_to(file.with_name("elsewhere"))
    assert set(of_few(path).choose(40)) == set(FEW)
    assert not path.exists()
