"""The page and its events: who gets them, how many, and what a page of somebody else's gets."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
from importlib import resources

import pytest

from ps_lab.cluster.ports import free_ports
from ps_lab.top import web
from ps_lab.top.view import Film
from ps_lab.top.web import MOST_CLIENTS, WebServer, serve
from ps_wire.errors import Unavailable
from tests.unit.ps_lab.made import made_job, made_status, made_worker
from tests.until import LIMIT_S, until


def view(name="mine", loss=0.5):
    return Film("here").add(
        made_status(made_job(name=name, workers=(made_worker(0, metrics={"loss": loss}),))), 0.0
    )


@pytest.fixture
def server():
    made = WebServer("127.0.0.1", 0)
    made.broadcast.put(view())
    made.begin()
    yield made
    made.close()


def port_of(server):
    return int(re.search(r":(\d+)/", server.url)[1])


@contextlib.contextmanager
def asking(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=LIMIT_S)
    try:
        connection.request("GET", path, headers=headers)
        yield connection.getresponse()
    finally:
        connection.close()


def next_view(reply):
    while not (line := reply.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return json.loads(line.removeprefix(b"data: "))


def test_the_page_needs_nothing_from_elsewhere(server):
    with asking(server, "/") as reply:
        page = reply.read().decode()
        assert (reply.status, "EventSource" in page) == (200, True)
        assert "default-src 'none'" in reply.getheader("Content-Security-Policy")
    assert not re.search(r"https?://|\b(src|href)=|@import|url\(", page)
    assert page == resources.files("ps_lab.top").joinpath(web.PAGE).read_text()


def test_who_follows_gets_the_newest_view_at_once_and_then_each(server):
    with asking(server, "/views") as reply:
        assert reply.getheader("Content-Type") == "text/event-stream"
        assert next_view(reply)["jobs"][0]["name"] == "mine"
        server.broadcast.put(view("another"))
        assert next_view(reply)["jobs"][0]["name"] == "another"


def test_a_loss_that_is_no_number_is_json(server):
    server.broadcast.put(view(loss=math.nan))
    with asking(server, "/views") as reply:
        assert next_view(reply)["jobs"][0]["lanes"][0]["loss"] == "nan"


def test_one_browser_too_many_is_told_so_and_a_place_is_free_again(server):
    with contextlib.ExitStack() as open_ones:
        for _ in range(MOST_CLIENTS):
            next_view(open_ones.enter_context(asking(server, "/views")))
        with asking(server, "/views") as reply:
            assert reply.status == 503
        with asking(server, "/") as reply:
            assert reply.status == 200

    def is_served():
        server.broadcast.put(view())  # which those who have gone do not read
        with contextlib.suppress(http.client.RemoteDisconnected), asking(server, "/views") as reply:
            return reply.status == 200
        return False

    until(is_served, "a place is free")


def test_a_browser_that_was_led_here_by_another_name_gets_nothing(server):
    with asking(server, "/views", Host="evil.example") as reply:
        assert reply.status == 421
    with asking(server, "/", Host=f"localhost:{port_of(server)}") as reply:
        assert reply.status == 200


def test_nothing_else_is_there(server):
    with asking(server, "/../../etc/passwd") as reply:
        assert reply.status == 404


def test_who_follows_is_let_go_at_the_end(server):
    with asking(server, "/views") as reply:
        next_view(reply)
        server.broadcast.end()
        assert b"" in [reply.readline() for _ in range(10)]


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"{port}.*--serve"):
            WebServer("127.0.0.1", port)


def test_ctrl_c_ends_it_in_order():
    said = []

    def moments():
        yield view()
        yield view()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(moments(), "127.0.0.1", free_ports(1)[0], say=said.append)
    (url,) = said
    port = int(re.search(r":(\d+)/", url)[1])
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S):  # noqa: PT011
        pass
