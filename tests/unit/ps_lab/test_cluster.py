"""What a cluster decides before it starts anything."""

import os
import socket

import pytest

from ps_lab.cluster import HOST, PORTS, command_path, free_ports, threads_per_process
from ps_lab.errors import CommandMissing


def test_free_ports_are_distinct_can_be_bound_and_are_not_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert set(ports) <= set(PORTS)
    for port in ports:
        with socket.socket() as probe:
            probe.bind((HOST, port))


def test_processes_share_the_cores_and_each_gets_at_least_one_thread() -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_per_process(1) == cores
    assert threads_per_process(10 * cores) == 1


def test_a_command_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(CommandMissing, match=r"ps-nothing is neither .* pip install"):
        command_path("ps-nothing")
