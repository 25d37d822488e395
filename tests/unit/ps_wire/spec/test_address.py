"""Addresses of servers and names of jobs, as typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import AddressInvalid, UsageError
from ps_wire.spec.address import MAX_SERVERS, check_job_name, is_loopback, parse_address, parse_servers


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:1", "localhost:1"),
        (" ps-0.svc.example:65535 ", "ps-0.svc.example:65535"),
        ("10.0.0.1:0080", "10.0.0.1:80"),
        ("[::1]:7000", "[::1]:7000"),
    ],
)
def test_host_and_port(text, address):
    """Blanks around it and zeros before the port go; IPv6 hosts are in brackets."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:x", "host:-1", "host:8 0", "host:٣", "host:1.5"]
)
def test_what_is_not_host_and_port_is_refused(text):
    """The error repeats what came."""
    with pytest.raises(AddressInvalid, match="is not HOST:PORT") as refused:
        parse_address(text)
    assert refused.value.facts == {"address": text}
    assert repr(text) in refused.value.message


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_a_port_out_of_range_is_refused(port):
    """Ports are 1 to 65535."""
    with pytest.raises(AddressInvalid, match=r"port must be in 1\.\.65535"):
        parse_address(f"host:{port}")


@pytest.mark.parametrize("text", ["::1:80", "[::1:80", "::1]:80", "http://host:80"])
def test_an_ipv6_host_without_brackets_is_refused(text):
    """The last colon could be the host's."""
    with pytest.raises(AddressInvalid, match=r"\[HOST\]:PORT"):
        parse_address(text)


@given(
    st.text("abcXYZ019.-_", min_size=1, max_size=253),
    st.integers(1, 65535),
)
def test_addresses_parse_to_themselves(host, port):
    """A parsed address parses to itself."""
    address = parse_address(f"{host}:{port}")
    assert parse_address(address) == address


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1", ("a:1",)),
        ("b:2, a:1", ("b:2", "a:1")),
        ("ps-{0..2}.ps:70", ("ps-0.ps:70", "ps-1.ps:70", "ps-2.ps:70")),
        ("a:1,h{9..10}:2,b:1", ("a:1", "h9:2", "h10:2", "b:1")),
        ("h:{7000..7001}", ("h:7000", "h:7001")),
        ("h{3..3}:1", ("h3:1",)),
    ],
)
def test_a_list_of_servers_keeps_its_order(text, servers):
    """Commas separate, `{A..B}` counts up, and the order is that of the shards."""
    assert parse_servers(text) == servers


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not HOST:PORT"),
        ("a:1,", "not HOST:PORT"),
        ("a:1,a:1", "a:1 is listed twice"),
        ("a:1,a:01", "a:1 is listed twice"),
        ("h{0..2}:1,h1:1", "h1:1 is listed twice"),
        ("h{2..1}:1", "empty or too long"),
        (f"h{{0..{MAX_SERVERS}}}:1", "empty or too long"),
        (f"h{{1..{MAX_SERVERS}}}:1,x:1", f"{MAX_SERVERS + 1} servers; at most {MAX_SERVERS}"),
        ("h{0..1}", "not HOST:PORT"),
        ("h{0..x}", "not HOST:PORT"),
    ],
)
def test_a_wrong_list_is_refused(text, reason):
    """None, one twice, too many, or one that is not HOST:PORT."""
    with pytest.raises(AddressInvalid, match=reason):
        parse_servers(text)


def test_the_largest_list_is_taken():
    """There are at most 4096 servers."""
    servers = parse_servers(f"h{{1..{MAX_SERVERS}}}:1")
    assert len(servers) == MAX_SERVERS == 4096
    assert (servers[0], servers[-1]) == ("h1:1", "h4096:1")


@given(st.text("ab1{}.,:[] -", max_size=20))
def test_any_text_is_a_list_or_refused(text):
    """Nothing that a person types raises another error."""
    try:
        servers = parse_servers(text)
    except AddressInvalid:
        return
    assert len(set(servers)) == len(servers) >= 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]", " 127.0.0.1 "])
def test_hosts_that_only_this_machine_reaches(host):
    """All of 127/8, in both ways of writing an IPv6 address."""
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "[::]", "", "10.0.0.1", "localhost.example", "127.0.0.1.example", "127.1", "host"],
)
def test_other_hosts_are_reached_from_elsewhere(host):
    """A name that might stand for loopback is not taken for it."""
    assert not is_loopback(host)


@pytest.mark.parametrize("name", ["a", "0", "mnist-2.1_x", "Z" * 64])
def test_job_names(name):
    """Letters, digits, dots, dashes and underscores."""
    assert check_job_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "a b", "a/b", "ä", "a\n", "Z" * 65, "x" * 10_000])
def test_other_job_names_are_refused(name):
    """The error repeats what came, shortened, and says what is valid."""
    with pytest.raises(UsageError, match="use 1 to 64 letters") as refused:
        check_job_name(name)
    assert repr(name[:80]) in refused.value.message
    assert len(refused.value.message) < 250
