"""Faults of data connections: peers that fall silent, shards that hang."""

from tests.mutants.mutant import Mutant

SOCKET = "tests/unit/ps_wire/test_frame_socket.py"
TLS = "tests/unit/ps_wire/test_tls_socket.py"
CONNECTION = "tests/unit/ps_worker/test_connection.py"

MUTANTS = (
    Mutant(
        name="the kernel's ETIMEDOUT is taken for our own limit",
        file="ps_wire/frame_socket.py",
        text="        if ran_out(error):\n",
        fault="        if isinstance(error, TimeoutError):\n",
        tests=(
            f"{SOCKET}::test_a_peer_that_only_fell_silent_is_a_lost_connection",
            f"{CONNECTION}::test_where_packets_vanish_the_connection_is_made_again",
        ),
    ),
    Mutant(
        name="our own limit is taken for a lost connection",
        file="ps_wire/frame_socket.py",
        text="        if ran_out(error):\n            raise\n",
        fault="",
        tests=(f"{SOCKET}::test_a_limit_of_ours_that_is_over_leaves_the_connection",),
    ),
    Mutant(
        name="of a pair whose receiving half was given up the other half stays",
        file="ps_wire/tls_socket.py",
        text="            if not ran_out(error):\n",
        fault="            if not isinstance(error, TimeoutError):\n",
        tests=(f"{TLS}::test_where_the_half_that_receives_is_given_up_sending_is_cut",),
    ),
    Mutant(
        name="a limit that is over cuts both halves",
        file="ps_wire/tls_socket.py",
        text="            if not ran_out(error):\n",
        fault="            if error:\n",
        tests=(f"{TLS}::test_waiting_for_bytes_has_a_limit",),
    ),
)
