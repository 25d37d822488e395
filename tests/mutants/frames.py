"""Faults of what travels: frames, sockets, queues, the plan, dtypes, tables, memory that is lent."""

from .mutant import Mutant

FRAME = "ps_wire/frames/frame.py"
SOCKET = "ps_wire/sockets/frame_socket.py"
QUEUE = "ps_wire/frames/queue.py"
PLAN = "ps_wire/spec/plan.py"
TABLE = "ps_wire/spec/table.py"
META = "ps_wire/frames/meta.py"
CODEC = "ps_wire/spec/codec.py"
LENT = "ps_wire/sockets/lent_memory.py"
CONSISTENCY = "ps_wire/spec/consistency.py"
FRAMES = "tests/unit/ps_wire/frames/test_frame.py"
SOCKETS = "tests/unit/ps_wire/sockets/test_frame_socket.py"
PLANS = "tests/unit/ps_wire/spec/test_plan.py"

MUTANTS = (
    Mutant(
        name="frame: meta is padded to 8 bytes",
        file=FRAME,
        text='return b"".join((head, frame.meta, bytes(-len(frame.meta) % META_ALIGNMENT)))',
        fault='return b"".join((head, frame.meta, bytes(-len(frame.meta) % 8)))',
        tests=(FRAMES,),
    ),
    Mutant(
        name="frame: a frame may have bytes behind its end",
        file=FRAME,
        text="    if len(message) != start + head.payload_bytes:\n",
        fault="    if len(message) < start + head.payload_bytes:\n",
        tests=(FRAMES,),
    ),
    Mutant(
        name="frame: a length of meta is not bounded",
        file=FRAME,
        text="if payload_bytes > MAX_PAYLOAD_BYTES or meta_bytes > MAX_META_BYTES:",
        fault="if payload_bytes > MAX_PAYLOAD_BYTES:",
        tests=(FRAMES, "tests/contracts/test_socket_carriers.py"),
    ),
    Mutant(
        name="frame: an older protocol is taken",
        file=FRAME,
        text="    if theirs != PROTOCOL:\n",
        fault="    if theirs > PROTOCOL:\n",
        tests=(FRAMES,),
    ),
    Mutant(
        name="frame: step and version change places on arrival",
        file=FRAME,
        text="            step=fields[8],\n            version=fields[9],\n",
        fault="            step=fields[9],\n            version=fields[8],\n",
        tests=(FRAMES,),
    ),
    Mutant(
        name="frame_socket: a partial send is taken for a whole one",
        file=SOCKET,
        text="                    buffers[index] = memoryview(buffers[index])[sent:]\n",
        fault="                    index += 1\n",
        tests=(SOCKETS, "tests/contracts/test_carrier.py"),
    ),
    Mutant(
        name="frame_socket: a stream that ends inside a frame ends in order",
        file=SOCKET,
        text='raise ConnectionLost("the stream ended inside a frame")\n                return None\n',
        fault="return None\n                return None\n",
        tests=(SOCKETS,),
    ),
    Mutant(
        name="frame_socket: a payload that came in parts begins anew with each",
        file=SOCKET,
        text="            count = _in_time(self._socket, self._read_whole, part[filled:], until_s)\n",
        fault="            count = _in_time(self._socket, self._read_whole, part, until_s)\n",
        tests=(SOCKETS,),
    ),
    Mutant(
        name="frame_socket: what is buffered behind a frame is lost",
        file=SOCKET,
        text="        kept = self._end - self._start\n        self._buffer[:kept]",
        fault="        kept = 0\n        self._buffer[:kept]",
        tests=(SOCKETS,),
    ),
    Mutant(
        name="frame_socket: a header that announces too much is believed",
        file=SOCKET,
        text="        if head.padded_meta_bytes + head.payload_bytes > max_body_bytes:\n",
        fault="        if head.padded_meta_bytes > max_body_bytes:\n",
        tests=(SOCKETS, "tests/contracts/test_socket_carriers.py"),
    ),
    Mutant(
        name="frame_socket: a frame whose meta has not come is taken",
        file=SOCKET,
        text="if head.payload_bytes or here < wire.HEADER_BYTES + head.padded_meta_bytes:",
        fault="if head.payload_bytes:",
        tests=(SOCKETS, "tests/contracts/test_carrier.py"),
    ),
    Mutant(
        name="frame_socket: descriptors are left open with the socket",
        file=SOCKET,
        text="        self._drop_descriptors()\n        self._socket.close()\n",
        fault="        self._socket.close()\n",
        tests=(SOCKETS, "tests/contracts/test_shared_memory.py"),
    ),
    Mutant(
        name="frame_socket: a batch goes on behind a large frame",
        file=SOCKET,
        text="        if bytes_of(taken[-1]) >= LARGE_BYTES:\n            break\n",
        fault="",
        tests=(
            "tests/unit/ps_wire/frames/test_queue.py",
            SOCKETS,
            "tests/unit/ps_worker/transport/test_outbox.py",
        ),
    ),
    Mutant(
        name="frame_queue: last layers first",
        file=QUEUE,
        text="key = (self._line + 1, -frame.partition, self._count)",
        fault="key = (self._line + 1, frame.partition, self._count)",
        tests=("tests/unit/ps_wire/frames/test_queue.py",),
    ),
    Mutant(
        name="frame_queue: a push overtakes what stands before it",
        file=QUEUE,
        text="key = (self._line + 1, -frame.partition, self._count)",
        fault="key = (self._line - 1, -frame.partition, self._count)",
        tests=("tests/unit/ps_wire/frames/test_queue.py", "tests/unit/ps_worker/transport/test_outbox.py"),
    ),
    Mutant(
        name="frame_queue: of two frames of one partition the later goes first",
        file=QUEUE,
        text="key = (self._line + 1, -frame.partition, self._count)",
        fault="key = (self._line + 1, -frame.partition, -self._count)",
        tests=("tests/unit/ps_wire/frames/test_queue.py",),
    ),
    Mutant(
        name="lent memory: memory that reaches beyond what is lent is lent",
        file=LENT,
        text="if start <= address and address + len(payload) <= end and",
        fault="if start <= address and address <= end and",
        tests=("tests/unit/ps_wire/sockets/test_lent_memory.py",),
    ),
    Mutant(
        name="lent memory: the place is counted from the payload's end",
        file=LENT,
        text="            return descriptor, address - start\n",
        fault="            return descriptor, address - start + len(payload)\n",
        tests=("tests/unit/ps_wire/sockets/test_lent_memory.py",),
    ),
    Mutant(
        name="lent memory: what is mapped where lent memory was is lent until that is forgotten",
        file=LENT,
        text=" and memory() is not None:",
        fault=":",
        tests=("tests/unit/ps_wire/sockets/test_lent_memory.py",),
    ),
    Mutant(
        name="lent memory: what is lent where other memory was is forgotten with that",
        file=LENT,
        text="start, number = np.frombuffer(memory, dtype=np.uint8).ctypes.data, next(_numbers)",
        fault="start = number = np.frombuffer(memory, dtype=np.uint8).ctypes.data",
        tests=("tests/unit/ps_wire/sockets/test_lent_memory.py",),
    ),
    Mutant(
        name="lent memory: what was freed is kept for ever",
        file=LENT,
        text="    weakref.finalize(memory, _lent.pop, number).atexit = False\n",
        fault="",
        tests=("tests/unit/ps_wire/sockets/test_lent_memory.py",),
    ),
    Mutant(
        name="plan: a partition at the end of a slice is as long as the others",
        file=PLAN,
        text="        numel = min(bucket.partition_numel, end - offset)\n",
        fault="        numel = bucket.partition_numel\n",
        tests=(PLANS,),
    ),
    Mutant(
        name="plan: a piece begins at its partition",
        file=PLAN,
        text="                    parameter_offset=low - placement.offset,\n",
        fault="                    parameter_offset=low - start,\n",
        tests=(PLANS,),
    ),
    Mutant(
        name="plan: a parameter that ends where a partition begins is in it",
        file=PLAN,
        text="placement.offset + placement.numel > partition.offset",
        fault="placement.offset + placement.numel >= partition.offset",
        tests=(PLANS,),
        survives="Where one ends at the start of a partition, the next one begins there, and is found instead.",
    ),
    Mutant(
        name="plan: parameters stand without a gap",
        file=PLAN,
        text="        offset += -(-numel // alignment) * alignment\n",
        fault="        offset += numel\n",
        tests=(PLANS,),
    ),
    Mutant(
        name="plan: parameters of two dtypes share a bucket",
        file=PLAN,
        text="key = (stages[index], parameter.group, parameter.dtype, parameter.device)",
        fault="key = (stages[index], parameter.group, parameter.device)",
        tests=(PLANS,),
    ),
    Mutant(
        name="plan: buckets in order of registration",
        file=PLAN,
        text="return sorted(full, key=lambda members: -members[-1])",
        fault="return sorted(full, key=lambda members: members[-1])",
        tests=(PLANS,),
    ),
    Mutant(
        name="plan: a bucket may be larger than its limit",
        file=PLAN,
        text="        if members and used + size > limit:\n",
        fault="        if members and used > limit:\n",
        tests=(PLANS,),
    ),
    Mutant(
        name="plan: the last shard's slice goes beyond the bucket",
        file=PLAN,
        text="        return start, min(start + self.slice_numel, self.numel)\n",
        fault="        return start, start + self.slice_numel\n",
        tests=(PLANS,),
    ),
    Mutant(
        name="table: another dtype is the same table",
        file=TABLE,
        text='for field in ("shape", "dtype", "group", "device", "stride"):',
        fault='for field in ("shape", "group", "device", "stride"):',
        tests=("tests/unit/ps_wire/spec/test_table.py",),
    ),
    Mutant(
        name="table: other sizes of buckets are the same table",
        file=TABLE,
        text='        ("bucket sizes", ours.buckets, theirs.buckets),\n',
        fault="",
        tests=("tests/unit/ps_wire/spec/test_table.py",),
    ),
    Mutant(
        name="table: another limit of the norm is the same table",
        file=TABLE,
        text='        ("clip_grad_norm", ours.clip_grad_norm, theirs.clip_grad_norm),\n',
        fault="",
        tests=("tests/unit/ps_wire/spec/test_table.py",),
    ),
    Mutant(
        name="table: two parameters of one name",
        file=TABLE,
        text="            seen.add(parameter.name)\n",
        fault="",
        tests=("tests/unit/ps_wire/spec/test_table.py",),
    ),
    Mutant(
        name="table: an infinite norm is a limit",
        file=TABLE,
        text="not 0.0 < self.clip_grad_norm < math.inf:",
        fault="not 0.0 < self.clip_grad_norm:",
        tests=("tests/unit/ps_wire/spec/test_table.py",),
    ),
    Mutant(
        name="meta: the first piece is the highest bit",
        file=META,
        text="packed[index >> 3] |= flag << (index & 7)",
        fault="packed[index >> 3] |= flag << (7 - (index & 7))",
        tests=("tests/unit/ps_worker/exchange/test_exchange.py",),
    ),
    Mutant(
        name="meta: a bitmap of too many pieces is taken",
        file=META,
        text="    if len(meta) != needed:\n",
        fault="    if len(meta) < needed:\n",
        tests=("tests/unit/ps_server/shard/table/test_table.py",),
    ),
    Mutant(
        name="meta: a partition may be listed twice",
        file=META,
        text="    if len(set(indices)) < len(indices):\n",
        fault="    if not indices:\n",
        tests=("tests/contracts/test_carrier.py::test_a_list_has_each_partition_once",),
    ),
    Mutant(
        name="codec: float64 travels rounded",
        file=CODEC,
        text="return codec if dtype is torch.float32 or codec == NOTHING else AS_THEY_ARE",
        fault="return codec",
        tests=("tests/unit/ps_wire/spec/test_codec.py",),
    ),
    Mutant(
        name="codec: bf16 and fp16 change places",
        file=CODEC,
        text="_ROUNDED = {BF16: torch.bfloat16, FP16: torch.float16}",
        fault="_ROUNDED = {BF16: torch.float16, FP16: torch.bfloat16}",
        tests=("tests/unit/ps_wire/spec/test_codec.py", "tests/component/tables/test_wire_dtype.py"),
    ),
)
