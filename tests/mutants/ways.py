"""Faults on the ways in and out of a server, and on the way back of a worker."""

from .mutant import Mutant

CARRIERS = "tests/contracts/test_carrier.py"
PAIRING = "tests/contracts/test_pairing.py"
ROUNDS = "tests/component/members/test_rounds_joined.py"
EVICTED = "tests/component/members/test_evicted.py"
MEMORY = "tests/contracts/test_shared_memory.py"
HALVES = "tests/contracts/test_mapped_halves.py"
STREAMS = "tests/unit/ps_server/shard/transport/test_grpc_stream.py"
SESSIONS = "tests/unit/ps_server/shard/transport/test_session.py"
REJOINS = "tests/unit/ps_worker/job/test_rejoiner.py"
ROLLBACK = "tests/component/snapshots/test_rollback.py"
OUTBOX = "ps_server/shard/transport/outbox.py"
STREAM = "ps_server/shard/transport/grpc_stream.py"
TLS = "ps_server/shard/transport/tls_pairing.py"
LATE = "ps_server/coordinator/late_joins.py"
REJOINER = "ps_worker/job/rejoiner.py"
SHARED = "ps_wire/sockets/shared_memory.py"

MUTANTS = (
    Mutant(
        name="ways: a peer that never reads fills the memory",
        file=OUTBOX,
        text="            if len(self._messages) >= MAX_OUTBOX_FRAMES:\n",
        fault="            if len(self._messages) >= 1 << 40:\n",
        tests=(f"{CARRIERS}::test_a_peer_that_never_reads_is_cut_off",),
    ),
    Mutant(
        name="ways: more is taken from a peer that does not read what it asked for",
        file=OUTBOX,
        text="        if self._bytes <= MAX_OUTBOX_BYTES:\n            return\n",
        fault="        return\n",
        tests=(CARRIERS,),
    ),
    Mutant(
        name="ways: who waits for room to answer one peer holds back what others are sent",
        file=OUTBOX,
        text="            _wake(_cork.waiting)\n            _cork.waiting.clear()\n",
        fault="            pass\n",
        tests=(CARRIERS,),
    ),
    Mutant(
        name="ways: a connection over gRPC that says nothing stays",
        file=STREAM,
        text="            async with asyncio.timeout(HELLO_LIMIT_S):\n",
        fault="            async with asyncio.timeout(None):\n",
        tests=(STREAMS,),
    ),
    Mutant(
        name="ways: frames over gRPC that nobody has taken yet have no bound",
        file=STREAM,
        text="        await self._room.acquire()\n",
        fault="",
        tests=(STREAMS,),
    ),
    Mutant(
        name="ways: a second half takes the place of the first one",
        file=TLS,
        text='                    raise FrameMalformed("this half of a connection is there already")\n',
        fault="                    pass\n",
        tests=(f"{PAIRING}::test_a_half_that_is_there_already_is_refused_and_the_first_one_stays",),
    ),
    Mutant(
        name="ways: a half waits for its other half without an end",
        file=TLS,
        text="                    max(until_s - time.monotonic(), 0.0),\n",
        fault="                    None,\n",
        tests=(f"{PAIRING}::test_a_half_without_its_other_half_is_ended_in_time_and_counted",),
    ),
    Mutant(
        name="ways: who speaks frames to TLS is told nothing",
        file=TLS,
        text="    if first != FRAME_MAGIC:\n",
        fault="    if True:\n",
        tests=(f"{PAIRING}::test_who_speaks_frames_without_tls_is_told_so_in_frames",),
    ),
    Mutant(
        name="ways: a server that stops waits for halves of connections",
        file=TLS,
        text="            for connection in self._shaking:\n                tls_socket.sever(connection)\n",
        fault="",
        tests=(f"{PAIRING}::test_a_server_that_stops_waits_for_no_half",),
    ),
    Mutant(
        name="ways: who joins late holds the others for ever",
        file=LATE,
        text="            async with asyncio.timeout(ENTER_LIMIT_S):\n",
        fault="            async with asyncio.timeout(None):\n",
        tests=(f"{ROUNDS}::test_who_makes_one_table_of_two_holds_the_others_up_for_a_limit_only",),
    ),
    Mutant(
        name="ways: who joins late is let in at the round of who is behind",
        file=LATE,
        text="beyond=_merged(max, begun)))",
        fault="beyond=_merged(min, begun)))",
        tests=("tests/unit/ps_server/coordinator/test_late_joins.py",),
    ),
    Mutant(
        name="ways: those who stood for who joins are not told to go on",
        file=LATE,
        text="        for member in [*self._asked.values(), *self._entering]:\n",
        fault="        for member in self._entering:\n",
        tests=(ROUNDS,),
    ),
    Mutant(
        name="ways: the promise of the incarnation before binds the next one",
        file=REJOINER,
        text="        self._promise.end()\n",
        fault="",
        tests=(REJOINS,),
    ),
    Mutant(
        name="ways: who joins again stands in the round of before",
        file=REJOINER,
        text="        self._rounds.begin_anew()\n",
        fault="",
        tests=(REJOINS,),
    ),
    Mutant(
        name="ways: a script does not hear that its steps are undone",
        file=REJOINER,
        text="            self._undone = undone, (found.state if found.saved else None)\n",
        fault="            pass\n",
        tests=(ROLLBACK,),
    ),
    Mutant(
        name="ways: memory whose maker may still shrink it is mapped",
        file=SHARED,
        text="    if seals & _SIZE_SEALS != _SIZE_SEALS:\n",
        fault="    if False:\n",
        tests=(f"{MEMORY}::test_what_could_kill_its_reader_is_never_mapped",),
    ),
    Mutant(
        name="ways: memory of another size than was said is mapped",
        file=SHARED,
        text="    if size != nbytes:\n",
        fault="    if False:\n",
        tests=(f"{MEMORY}::test_what_could_kill_its_reader_is_never_mapped",),
    ),
    Mutant(
        name="ways: who maps a shard's weights may write them",
        file=SHARED,
        text="    _seal(descriptor, _SIZE_SEALS | _NO_LATER_WRITER)\n",
        fault="    _seal(descriptor, _SIZE_SEALS)\n",
        tests=(HALVES, MEMORY),
    ),
    Mutant(
        name="ways: what an evicted worker had a token for it may still open",
        file="ps_server/shard/job.py",
        text="        self.leave(worker, incarnation)\n        self.tokens.forget(worker, incarnation)\n"
        "        self.fenced",
        fault="        self.leave(worker, incarnation)\n        self.fenced",
        tests=("tests/unit/ps_server/shard/test_shard.py", SESSIONS),
        survives="`check_known` refuses who is fenced whatever token it has; forgetting it only frees memory.",
    ),
    Mutant(
        name="ways: who is of a history that was undone is taken for a stranger",
        file="ps_server/shard/job.py",
        text="        if self.floor and incarnation <= self.floor:\n",
        fault="        if False:\n",
        tests=("tests/component/snapshots/test_rollback_streams.py", ROLLBACK),
    ),
    Mutant(
        name="ways: a shard keeps taking from an incarnation that is fenced",
        file="ps_server/shard/members.py",
        text="            sessions = entry.fence(worker, incarnation)\n            tables = list(entry.tables.values())\n"
        "        for session in sessions:\n            session.retire()\n",
        fault="            entry.fence(worker, incarnation)\n            tables = list(entry.tables.values())\n",
        tests=(SESSIONS, EVICTED, "tests/search/test_deadlock_servers.py"),
    ),
    Mutant(
        name="ways: a reader that has gone keeps its connections",
        file="ps_server/shard/members.py",
        text="        for session in sessions:\n            session.retire()\n"
        "        return {table.spec.number: table.leave(worker, incarnation) for table in tables}\n",
        fault="        return {table.spec.number: table.leave(worker, incarnation) for table in tables}\n",
        tests=("tests/unit/ps_server/shard/test_shard.py",),
    ),
)
