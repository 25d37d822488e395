"""The error tree: complete, as drawn, and the same on both ends of a wire."""

from __future__ import annotations

import json
import re

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire import errors
from ps_wire.access.status import error_of
from ps_wire.errors import (
    BY_NAME,
    STATUS,
    PsError,
    ServerUnreachable,
    TlsRefused,
    Unavailable,
    facts_to_json,
    from_wire,
)
from ps_wire.text import one_line

FACTS = st.dictionaries(
    st.text(max_size=10),
    st.none() | st.text(max_size=20) | st.integers() | st.floats(allow_nan=False) | st.booleans(),
    max_size=5,
)


def below(cls: type[PsError]) -> set[type[PsError]]:
    """A class and its subclasses in `ps_wire.errors`; a command may have more of its own."""
    children = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
    return {cls}.union(*map(below, children))


def drawn() -> dict[str, tuple[str | None, int]]:
    """The tree in the module's docstring: the parent and the exit code of each class."""
    tree: dict[str, tuple[str | None, int]] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)(?: \((\d+))?", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        parent = path[depth - 1] if depth else None
        code = int(found[3]) if found[3] else tree[parent][1]
        path[depth:] = [found[2]]
        tree[found[2]] = parent, code
    return tree


def test_every_error_has_a_status():
    """Each class of the tree is in the one table, under its own name."""
    assert below(PsError) == set(STATUS)
    assert {cls.__name__: cls for cls in STATUS} == BY_NAME
    assert len(BY_NAME) == len(STATUS)


def test_the_drawn_tree_is_the_tree():
    """Parents and exit codes are those of the docstring, and no class is missing there."""
    real = {
        cls.__name__: (None if cls is PsError else cls.__base__.__name__, cls.exit_code) for cls in STATUS
    }
    assert drawn() == real


def test_what_is_retryable():
    """The same call may succeed later where nobody answered, or certificates are being replaced."""
    assert {cls for cls in STATUS if cls.retryable} == below(Unavailable) | {TlsRefused}


def test_statuses_are_those_of_grpc():
    """Every status is the name of a gRPC code, and none says that all went well."""
    assert set(STATUS.values()) <= {code.name for code in grpc.StatusCode} - {"OK"}


@given(st.sampled_from(sorted(BY_NAME)), st.text(max_size=40), FACTS)
def test_an_error_crosses_the_wire(name, message, facts):
    """The receiving end has the same class, message (on one line) and facts."""
    error = BY_NAME[name](message)
    error.facts = facts
    received = from_wire(type(error).__name__, error.message, facts_to_json(error))
    assert type(received) is type(error)
    assert (received.message, received.facts) == (one_line(message), facts)


def test_facts_are_the_keywords_of_an_error():
    """Facts are given by name where the error is raised."""
    error = errors.PushOutOfOrder("send again", clock=3)
    assert (error.message, str(error), error.facts) == ("send again", "send again", {"clock": 3})


@pytest.mark.parametrize("name", ["", "ValueError", "Frame refused", "pserror"])
def test_an_unknown_name_becomes_the_root_and_is_kept(name):
    """A peer of a later version may know more errors; none of its names is executed."""
    received = from_wire(name, "no", '{"a": 1}')
    assert type(received) is PsError
    assert (received.message, received.facts) == (f"{name}: no", {"a": 1})


NESTED = "[" * 4096


@pytest.mark.parametrize("facts", ["", "{", "[1]", "3", "null", '"x"', "{'a': 1}", "9" * 9999, NESTED])
def test_broken_facts_count_as_none(facts):
    """The error arrives all the same."""
    received = from_wire("JobFull", "full", facts)
    assert type(received) is errors.JobFull
    assert (received.message, received.facts) == ("full", {})


def test_facts_that_are_no_plain_values_are_left_out():
    """Only texts, numbers and null are facts."""
    received = from_wire("JobFull", "full", '{"a": [1], "b": {"c": 1}, "d": 2, "e": null, "f": "x"}')
    assert received.facts == {"d": 2, "e": None, "f": "x"}


@pytest.mark.parametrize(("total", "kept"), [(4096, True), (4097, False)])
def test_facts_are_bounded(total, kept):
    """At most 4 KiB of facts travel; larger ones are left behind."""
    facts = {"a": "x" * (total - len('{"a": ""}'))}
    assert json.loads(facts_to_json(PsError("x", **facts))) == (facts if kept else {})


class Failed(grpc.RpcError):
    """A call that no server of ours has ended with an error."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "so it is"

    def trailing_metadata(self) -> None:
        return None


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"])
def test_a_server_that_is_gone_or_about_to_stop_cannot_be_reached(code: str) -> None:
    """A call that comes as the server stops is cancelled: whoever made it tries again, as for the others."""
    error = error_of(Failed(grpc.StatusCode[code]), "shard:1")
    assert isinstance(error, ServerUnreachable)
    assert error.facts == {"address": "shard:1"}
    assert type(error_of(Failed(grpc.StatusCode.INTERNAL), "shard:1")) is PsError


def test_a_certificate_without_the_name_of_its_server_is_a_refusal_that_says_what_to_write_into_it():
    """GRPC looks itself, and does not take all that Python takes: *.ps-server."""
    error = error_of(Failed(grpc.StatusCode.UNAUTHENTICATED), "ps-server-0.ps-server:1")
    assert isinstance(error, errors.TlsRefused)
    assert error.exit_code == 78
    assert "server ps-server-0.ps-server:1: so it is" in error.message
    assert "gRPC takes no *.WORD" in error.message


def test_a_bug_crosses_the_wire_with_its_class_and_its_message():
    assert errors.InternalError.of(KeyError("a key")).message == "KeyError: 'a key'"
