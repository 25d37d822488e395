"""The tables of docs/protocol.md are the code."""

import re
import struct

import pytest

from ps_server.coordinator import meetings, member_streams, readers, recovery, state_store
from ps_server.coordinator.jobs import actions
from ps_server.coordinator.jobs import runner as room
from ps_server.rpc import auth as gatekeeper
from ps_server.rpc import errors as call_errors
from ps_server.rpc import greeting
from ps_server.shard import connection_tokens
from ps_server.shard.table import cuts as cut_table
from ps_server.shard.table import kept_hyperparameters
from ps_server.shard.transport import grpc_stream, outbox, socket_connection
from ps_wire import errors
from ps_wire.access import channel, token
from ps_wire.frames import carrier, frame, state_messages
from ps_wire.process import ranks
from ps_wire.snapshot import manifest
from ps_wire.snapshot import store as snapshot_store
from ps_wire.snapshot import tensors as snapshot_tensors
from ps_wire.sockets import frame_socket, tls_socket
from ps_wire.spec import address, job_spec, table
from ps_worker.transport import carrier_choice, liveness, socket_stream

from .pages import table as rows_of

PAGE = "docs/protocol.md"
FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "f32": "f"}


def test_the_byte_table_is_the_frame():
    """A frame whose fields all differ, packed by the code, reads the same by the table."""
    values = {
        "kind": frame.Kind.PUSH,
        "codec": 2,
        "flags": 3,
        "partition": 0x01020304,
        "table": 0x0506,
        "rank": 0x0708,
        "step": 0x1112131415161718,
        "version": 0x2122232425262728,
        "worker": 0x31323334,
        "generation": 0x51525354,
        "incarnation": 0x4142434461626364,
        "hyper": 0x71727374,
        "weight": 0.375,
    }
    message = frame.encode(frame.Frame(**values, meta=b"abcde", payload=b"payload"))
    expected = values | {
        "magic": frame.MAGIC,
        "protocol": frame.PROTOCOL,
        "payload_bytes": len(b"payload"),
        "meta_bytes": len(b"abcde"),
    }
    end = 0
    read = {}
    for offset, size, kind, field, _ in rows_of(PAGE, "offset", "bytes"):
        assert int(offset) == end, field
        assert struct.calcsize(FORMATS[kind]) == int(size), field
        read[field.strip("`")] = struct.unpack_from("<" + FORMATS[kind], message, int(offset))[0]
        end += int(size)
    assert end == frame.HEADER_BYTES
    assert read == expected
    assert message[end:] == b"abcde" + bytes(11) + b"payload"


def test_the_kinds_are_the_codes():
    """Numbers, names and fields of the kinds exist, and none is left out."""
    rows = rows_of(PAGE, "number", "kind")
    assert {(int(row[0]), row[1]) for row in rows} == {(kind.value, kind.name) for kind in frame.Kind}
    fields = set(frame.Frame._fields)
    for row in rows:
        assert set(re.findall(r"`(\w+)`", row[3])) <= fields, row


def test_unused_fields_have_the_values_that_are_said():
    """0, and a weight of 1."""
    bare = frame.Frame(kind=frame.Kind.ACK)
    unused = {
        field: value
        for field, value in bare._asdict().items()
        if field not in {"kind", "meta", "payload", "terms", "descriptors"}
    }
    assert unused.pop("weight") == 1.0
    assert set(unused.values()) == {0}


def test_the_error_table_is_the_tree():
    """Every class with its status, exit code and whether to try again."""
    said = {
        (name.strip("`"), status, int(code), retry == "yes")
        for name, status, code, retry in rows_of(PAGE, "class", "status")
    }
    assert said == {
        (cls.__name__, status, cls.exit_code, cls.retryable)
        for cls, status in errors.STATUS.items()
        if cls is not errors.PsError
    }


def test_the_reference_has_every_exit_code():
    """Those of the error tree, of a finished run, of SIGTERM and of Ctrl-C."""
    said = {int(row[0]) for row in rows_of("docs/reference.md", "code", "meaning")}
    assert said == {cls.exit_code for cls in errors.STATUS} | {0, 75, 130}


@pytest.mark.parametrize(
    ("what", "numbers"),
    [
        ("payload of a frame", [frame.MAX_PAYLOAD_BYTES >> 20]),
        ("meta of a frame", [(frame.MAX_META_BYTES + 64) >> 20, 64]),
        ("a gRPC message", [channel.MAX_MESSAGE_BYTES >> 20, call_errors.MAX_REQUEST_BYTES >> 20]),
        (
            "data of a message with optimizer state",
            [state_messages.MESSAGE_BYTES >> 20],
        ),
        ("a partition", [table.BucketOptions().partition_bytes >> 20, frame.MAX_PAYLOAD_BYTES >> 20]),
        ("received frames that wait per connection (`grpc`)", [grpc_stream.INBOX_FRAMES]),
        ("meta and payload of a stranger's frame (sockets)", [socket_connection.MAX_HELLO_BYTES]),
        (
            "replies to read, above which nothing is taken",
            [outbox.MAX_OUTBOX_BYTES >> 20],
        ),
        ("frames that wait to be sent to one peer", [outbox.MAX_OUTBOX_FRAMES]),
        (
            "connections to a port or socket that have not said HELLO",
            [greeting.MAX_STRANGERS, int(greeting.HELLO_LIMIT_S)],
        ),
        (
            "handshake on the control port",
            [dict(channel.SERVER)["grpc.server_handshake_timeout_ms"] // 1000],
        ),
        (
            "calls of one connection on the control port",
            [dict(channel.SERVER)["grpc.max_concurrent_streams"]],
        ),
        ("calls without a good token", [gatekeeper.MAX_WAITING, int(gatekeeper.LOG_EVERY_S)]),
        ("a token", [token.MIN_CHARACTERS, token.MAX_CHARACTERS]),
        ("tables of a job", [table.MAX_TABLES]),
        (
            "workers of a job, jobs, shards",
            [job_spec.MAX_WORKERS, room.MAX_JOBS, address.MAX_SERVERS],
        ),
        ("state outside tables, per job", [state_store.MAX_JOB_BYTES >> 30, state_store.MAX_NAMES]),
        (
            "a file of a snapshot that is brought",
            [
                int(100 * snapshot_store.KEPT_FREE),
                manifest.MAX_MANIFEST_BYTES >> 20,
                snapshot_tensors.MAX_HEADER_BYTES >> 20,
            ],
        ),
        (
            "snapshots of a job, workers of one, going back to them",
            [
                snapshot_store.MAX_SNAPSHOTS,
                manifest.MAX_SAVED_WORKERS,
                recovery.RESTORES,
                int(recovery.RESTORES_WITHIN_S) // 60,
                recovery.TRIES,
            ],
        ),
        ("what workers had beside tables, per snapshot", [state_store.MAX_SAVED_BYTES >> 30]),
        ("readers with one token, requests of one that wait", [readers.MAX_READERS, readers.MAX_REQUESTS]),
        (
            "ranks of a group, groups of a job that meet at once, ranks of these",
            [ranks.MAX_SIZE, meetings.MAX_MEETINGS, meetings.MAX_RANKS],
        ),
        ("metrics of a worker", [member_streams.MAX_METRICS, 64]),
        ("reason in a notice", [actions.MAX_NOTICE_REASON]),
        (
            "texts of a heartbeat: what is waited for, why no better carrier",
            [member_streams.MAX_MEMBER_TEXT],
        ),
    ],
)
def test_the_limits_are_those_of_the_code(what, numbers):
    """Each row of the table of limits has the numbers of the constants."""
    limits = {row[0]: row[1] for row in rows_of(PAGE, "what", "limit")}
    said = [int(text.replace(" ", "")) for text in re.findall(r"\d+(?: \d{3})*", limits[what])]
    assert said == numbers


def test_the_carriers_are_those_of_the_code():
    """In the order in which they are offered."""
    said = [row[0].strip("`") for row in rows_of(PAGE, "carrier", "what it is")]
    assert said == [*carrier.Carrier, carrier.MEMORY]
    assert set(socket_stream.DOORS) < set(said)
    text = " ".join((rows_of.__globals__["ROOT"] / PAGE).read_text().split())
    assert f"HELLO comes back within {carrier_choice.GREET_LIMIT_S:.0f} seconds" in text
    assert f"what still comes, at most {socket_connection.CLOSE_LIMIT_S:.0f} seconds" in text
    idle_s, between_s, count = frame_socket.KEEPALIVE_S
    assert f"after {idle_s} seconds, and gives it up after {idle_s + between_s * count}" in text
    assert f"from a shard for {liveness.SILENT_S:.0f} seconds" in text
    assert f"not answered within {liveness.ANSWER_LIMIT_S:.0f} seconds" in text
    assert f"of a socket are {frame_socket.LOCAL_BUFFER_BYTES >> 10} KiB" in text


def test_the_first_bytes_inside_tls_are_those_of_the_code():
    """Which half of which pair a connection is: their order and lengths."""
    rows = [[int(row[0]), int(row[1]), row[2]] for row in rows_of(PAGE, "first byte", "how many")]
    magic, direction, pair = (
        tls_socket.MAGIC,
        (tls_socket.UP, tls_socket.DOWN),
        tls_socket.PAIR_BYTES,
    )
    assert [row[:2] for row in rows] == [[0, len(magic)], [4, 1], [5, pair]]
    assert f"`{magic.decode()}`" in rows[0][2]
    assert re.findall(r"`(\w)`", rows[1][2]) == [side.decode() for side in direction]


def test_other_numbers_in_the_text():
    """Sizes of tokens, and how many hyper-parameters and tokens are kept."""
    text = " ".join((rows_of.__globals__["ROOT"] / PAGE).read_text().split())
    assert f"`0x{frame.MAGIC:08x}`" in text
    assert f"a token of {connection_tokens.TOKEN_BYTES} random bytes" in text
    assert f"at most {connection_tokens.MAX_TOKENS} unused tokens" in text
    assert f"a number of {frame.FIRST_READER} or more" in text
    assert f"It did not come about within {readers.CUT_LIMIT_S:g} seconds".lower() in text
    assert f"gives a hold up after {cut_table.HOLD_LIMIT_S:g}" in text
    assert f"the last {kept_hyperparameters.KEPT_HYPERPARAMETERS} of each rank per table" in text
