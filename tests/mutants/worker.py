"""Faults of the library that a script imports: traffic, weights, gradients, joining again, data."""

from .mutant import Mutant

EXCHANGE = "ps_worker/exchange/exchange.py"
PULLS = "ps_worker/exchange/pulls.py"
PUSHES = "ps_worker/exchange/pushes.py"
IN_FLIGHT = "ps_worker/exchange/in_flight.py"
CONNECTION = "ps_worker/transport/connection.py"
RETRY = "ps_worker/process/retry.py"
OF_RETRY = ("tests/unit/ps_worker/process/test_retry.py",)
OUTBOX = "ps_worker/transport/outbox.py"
INCARNATION = "ps_worker/membership/incarnation.py"
STREAM = "ps_worker/membership/member_stream.py"
STAGES = "ps_worker/optimizer/step_cycle.py"
SENDING = "ps_worker/optimizer/sender.py"
WRAPPED = "ps_worker/optimizer/wrapped.py"
GRADIENTS = "ps_worker/optimizer/table_gradients.py"
OUTGOING = "ps_worker/optimizer/bucket_gradients.py"
WEIGHTS = "ps_worker/optimizer/shown_weights.py"
ARRIVAL = "ps_worker/optimizer/arrival.py"
LIST = "ps_worker/memory/tensor_list.py"
LOOPS = "ps_worker/memory/tensor_list.cpp"
TABLE_MEMORY = "ps_worker/memory/table_memory.py"
OF_FRONT = ("tests/unit/ps_worker/memory/test_front.py",)
OF_LIST = ("tests/unit/ps_worker/memory/test_tensor_list.py",)
MEMORY = "ps_worker/memory/os_memory.py"
CHOICE = "ps_worker/transport/carrier_choice.py"
ROUNDED = "ps_worker/memory/rounded.py"
ROUNDS = "ps_worker/membership/round_barrier.py"
LOADER = "ps_worker/data/loader.py"
SHARE = "ps_worker/data/index_share.py"
STREAM_SHARE = "ps_worker/data/stream_share.py"
DEALING = "ps_worker/data/epoch_dealer.py"
EXCHANGES = "tests/unit/ps_worker/exchange/test_exchange.py"
MODULE_WAITS = "tests/component/training/test_module_waits.py"

MUTANTS = (
    Mutant(
        name="gradients: those of the first step are kept until the next one begins",
        file=OUTGOING,
        text="        self._noted.clear()  # it was compared: gradients that move into flat memory go, bucket by bucket\n",
        fault="",
        tests=(
            "tests/component/wrap/test_gradient_views.py::test_gradients_of_the_first_step_go_bucket_by_bucket",
        ),
    ),
    Mutant(
        name="tensor list: functions of any torch are called",
        file=LIST,
        text="offset is None or not declared(torch.__version__)",
        fault="offset is None",
        tests=OF_LIST,
    ),
    Mutant(
        name="pulls: the answer to an older pull is taken",
        file=PULLS,
        text="        if answer.step != self.step:\n",
        fault="        if answer.step > self.step:\n",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: an answer is taken though something else was asked for while it came",
        file=IN_FLIGHT,
        text="            expected = self._pulls.expected(frame)\n            if not expected:\n",
        fault="            expected = list(lists.partitions(frame))\n            if not expected:\n",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: an answer that comes again is written again",
        file=PULLS,
        text="for partition in partitions(answer) if partition in self._missing]",
        fault="for partition in partitions(answer)]",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: clocks go back",
        file=IN_FLIGHT,
        text="self.clocks[worker] = max(clock, self.clocks.get(worker, 0))",
        fault="self.clocks[worker] = clock",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: a new connection sends pushes of other shards",
        file=IN_FLIGHT,
        text=" if self._shard_of[it.partition] == shard]\n            return pushes",
        fault="]\n            return pushes",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: a new connection asks for no weights",
        file=EXCHANGE,
        text="            yield self._pull_frame(asked)\n",
        fault="            pass\n",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: a new connection sends pushes before their hyper-parameters",
        file=EXCHANGE,
        text="        yield from self._hyper_frames  # read after the pushes: those that they refer to are there\n",
        fault="",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: a push is noted after it was sent",
        file=EXCHANGE,
        text="        self.in_flight.note(frames)\n        for shard, mine in by_shard.items():\n"
        "            self._connections[shard].send(*mine)\n",
        fault="        for shard, mine in by_shard.items():\n            self._connections[shard].send(*mine)\n"
        "        self.in_flight.note(frames)\n",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="exchange: an abstention takes back what was pushed",
        file=EXCHANGE,
        text="            if self.in_flight.pushed_step(partition.index) != step:\n",
        fault="            if partition.index not in {it.partition for it in self.in_flight.unacked()}:\n",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="pushes: the ACK of a LOAD that was sent twice ends the first push",
        file=PUSHES,
        text=" and (sent.kind is wire.Kind.LOAD or not answer.flags & wire.LOADED)",
        fault="",
        tests=("tests/unit/ps_worker/exchange/test_in_flight.py",),
    ),
    Mutant(
        name="pushes: an ACK of another step ends one",
        file=PUSHES,
        text="    return sent.step == answer.step and (sent.kind",
        fault="    return (sent.kind",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="pushes: an ACK that comes again un-lends the memory",
        file=PUSHES,
        text="                if answer.flags & wire.LENT:\n",
        fault="                if answer.flags & wire.LENT and kept is self.unacked:\n",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="pushes: memory that is lent may be written",
        file=PUSHES,
        text="return not (_among(self.unacked, wanted) or _among(self.lent, wanted))",
        fault="return not _among(self.unacked, wanted)",
        tests=(EXCHANGES, "tests/component/memory/test_lent_memory.py"),
    ),
    Mutant(
        name="pushes: what is lent is not sent again",
        file=PUSHES,
        text="        yield from self.lent.values()\n",
        fault="",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="waits: a failure ends the waits of now only",
        file=IN_FLIGHT,
        text="            self._error = told = prevailing(self._error, error)\n",
        fault="            self._error, told = None, error\n",
        tests=(f"{EXCHANGES}::test_a_failure_ends_every_wait_now_and_later",),
    ),
    Mutant(
        name="waits: a failure does not wake who waits for acknowledgements",
        file=IN_FLIGHT,
        text="            self._changed.notify_all()\n            self._answered.notify_all()\n            due",
        fault="            self._changed.notify_all()\n            due",
        tests=(f"{EXCHANGES}::test_a_failure_ends_every_wait_now_and_later",),
    ),
    Mutant(
        name="waits: a callback comes again",
        file=IN_FLIGHT,
        text="        due = self._when_acked.copy()\n        self._when_acked.clear()\n",
        fault="        due = self._when_acked.copy()\n",
        tests=(f"{EXCHANGES}::test_callbacks_come_once",),
    ),
    Mutant(
        name="reentry: what the incarnation before had pushed is awaited",
        file=IN_FLIGHT,
        text="            self._pushes = Pushes()\n",
        fault="",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="reentry: hyper-parameters are sent as of the incarnation before",
        file=EXCHANGE,
        text="        self._hyper_frames = tuple(it.but(incarnation=incarnation) for it in self._hyper_frames)\n",
        fault="",
        tests=(EXCHANGES,),
    ),
    Mutant(
        name="incarnation: what an evicted one still gets reaches the tables",
        file=INCARNATION,
        text="        if not self._over:\n            self._peer.receive(frame)\n",
        fault="        self._peer.receive(frame)\n",
        tests=("tests/unit/ps_worker/membership/test_incarnation.py",),
    ),
    Mutant(
        name="incarnation: a failure of an evicted one fails the next",
        file=INCARNATION,
        text="            if not self._over:\n                self._peer.fail(error)\n",
        fault="            self._peer.fail(error)\n",
        tests=("tests/unit/ps_worker/membership/test_incarnation.py",),
    ),
    Mutant(
        name="connection: what is sent while it replays overtakes the replay",
        file=CONNECTION,
        text="            outbox.put(list(self._peer.replay(self._shard)))\n",
        fault="            pass\n",
        tests=("tests/component/connections/test_connection.py",),
    ),
    Mutant(
        name="connection: one that broke is still written to",
        file=CONNECTION,
        text="                with self._lock:\n                    self._outbox = None\n",
        fault="                pass\n",
        tests=("tests/component/connections/test_connection.py",),
        survives="What is put into the queue of a connection that has ended is sent to nobody, and by the next one again.",
    ),
    Mutant(
        name="retry: who worked for a while has as little time left as before",
        file=RETRY,
        text="        self._since_s, self.attempt = None, 0\n",
        fault="        self.attempt = 0\n",
        tests=OF_RETRY,
    ),
    Mutant(
        name="retry: a person is told at every try",
        file=RETRY,
        text="        if self.attempt == 0 and say is not None:\n",
        fault="        if say is not None:\n",
        tests=OF_RETRY,
    ),
    Mutant(
        name="retry: the limit of a call counts from its first failure",
        file=RETRY,
        text="        self._since_s = clock() if from_now else None\n",
        fault="        self._since_s = None\n",
        tests=OF_RETRY,
    ),
    Mutant(
        name="retry: a call is made again whatever its error is",
        file=RETRY,
        text="                if not again(error) or not self.fail():\n",
        fault="                if not self.fail():\n",
        tests=OF_RETRY,
    ),
    Mutant(
        name="connection: it is tried for ever",
        file=CONNECTION,
        text="            if not retry.fail():\n",
        fault="            if not retry.fail() and retry.left_s < -1000:\n",
        tests=("tests/component/connections/test_connection.py",),
    ),
    Mutant(
        name="connection: an older process of a shard is taken",
        file=CONNECTION,
        text="        if generation < self._generation:\n",
        fault="        if generation < 0:\n",
        tests=("tests/component/connections/test_connecting.py",),
    ),
    Mutant(
        name="outbox: weights are asked for before the pushes of their partition",
        file=OUTBOX,
        text="    if ready := [index for index in wanted if index not in mine]:\n        yield meta.part(pull, ready)\n",
        fault="    yield pull\n    yield from pushes\n    return\n    if ready := []:\n        yield pull\n",
        tests=("tests/unit/ps_worker/transport/test_outbox.py",),
    ),
    Mutant(
        name="outbox: weights are asked for twice",
        file=OUTBOX,
        text="        if push.partition in mine and last[push.partition] == index:\n",
        fault="        if push.partition in mine:\n",
        tests=("tests/unit/ps_worker/transport/test_outbox.py",),
    ),
    Mutant(
        name="outbox: a closed one loses what is queued",
        file=OUTBOX,
        text="            self._closed = True\n            self._changed.notify()\n",
        fault="            self._closed = True\n            while self._frames:\n"
        "                self._frames.popleft()\n            self._changed.notify()\n",
        tests=("tests/unit/ps_worker/transport/test_outbox.py",),
    ),
    Mutant(
        name="carriers: the token of one try is shown in the next",
        file=CHOICE,
        text="            if index:\n                _, frames = introduce()",
        fault="            if index > 1:\n                _, frames = introduce()",
        tests=("tests/component/connections/test_carrier_choice.py",),
    ),
    Mutant(
        name="carriers: memory is shared where numbers travel rounded",
        file=CHOICE,
        text="            offers = [offer for offer in offers if offer.name != Carrier.SHM]\n",
        fault="            pass\n",
        tests=("tests/component/connections/test_carrier_choice.py",),
    ),
    Mutant(
        name="carriers: another one is taken than was wanted",
        file=CHOICE,
        text="        wanted = [offer for offer in offers if offer.name == self._wanted]\n",
        fault="        wanted = [offer for offer in offers if offer.name >= self._wanted]\n",
        tests=("tests/component/connections/test_carrier_choice.py",),
    ),
    Mutant(
        name="stream: a request is said once, whatever became of its stream",
        file=STREAM,
        text="                requests = [request for request in self._numbered if request.number > sent]\n"
        "                sent = self._number\n",
        fault="                requests = [request for request in self._numbered if request.number > sent]\n"
        "                self._numbered = []\n                sent = self._number\n",
        tests=("tests/unit/ps_worker/membership/test_member_stream.py",),
    ),
    Mutant(
        name="stream: a reply that comes again is taken again",
        file=STREAM,
        text="            if reply.number <= self._heard:\n                return\n",
        fault="",
        tests=("tests/unit/ps_worker/membership/test_member_stream.py",),
    ),
    Mutant(
        name="step: the first push of a step does not wait for all weights (R1)",
        file=STAGES,
        text="        if self.stage is Stage.ARRIVING:\n            self._await()\n            if self.arrival.late:",
        fault="        if self.stage is Stage.ARRIVING:\n            if self.arrival.late:",
        tests=(MODULE_WAITS,),
    ),
    Mutant(
        name="step: what has not left of a step that was broken off is never sent",
        file=STAGES,
        text="                self._sender.abstain_rest()\n                self._ask()\n",
        fault="                self._ask()\n",
        tests=("tests/component/members/test_interrupted_step.py",),
    ),
    Mutant(
        name="step: a script goes on before gradients that lie where they were pushed from are given back",
        file=STAGES,
        text="            self._sender.wait_given_back()\n",
        fault="",
        tests=("tests/component/wrap/test_gradient_views.py",),
    ),
    Mutant(
        name="step: with gradient views step() waits for all weights, also where gradients are given back",
        file="ps_worker/optimizer/sender.py",
        text="(not self.as_views or all(exchange.gives_back for exchange in exchanges))",
        fault="not self.as_views",
        tests=("tests/component/wrap/test_gradient_views.py",),
    ),
    Mutant(
        name="step: a step begins inside another",
        file=STAGES,
        text='        assert stage in TRANSITIONS[self.stage], f"{self.stage} to {stage}"\n',
        fault="",
        tests=("tests/unit/ps_worker/optimizer/test_step_cycle.py",),
    ),
    Mutant(
        name="step: after an error a step is taken for under way",
        file=STAGES,
        text="            if self.stage is Stage.SENDING:\n                self._enter(Stage.NO_STEP)\n",
        fault="            pass\n",
        tests=("tests/unit/ps_worker/optimizer/test_step_cycle.py",),
    ),
    Mutant(
        name="step: weights that a forward has read too early are not found out",
        file=ARRIVAL,
        text="        for key in self.late.keys() & arrived:\n",
        fault="        for key in ():\n",
        tests=("tests/component/members/test_broken_waits.py",),
    ),
    Mutant(
        name="step: an overflow is pushed",
        file=SENDING,
        text="        if overflow or not any(table.there or table.left for table in self.tables):\n",
        fault="        if not any(table.there or table.left for table in self.tables):\n",
        tests=("tests/component/training/test_mixed_precision.py",),
    ),
    Mutant(
        name="step: gradients accumulate, and leave at each backward",
        file=GRADIENTS,
        text="        if self._syncing() and self.exchange.leaves_early:\n",
        fault="        if True:\n",
        tests=("tests/component/training/test_overlap.py", "tests/component/wrap/test_wrap_gradients.py"),
    ),
    Mutant(
        name="step: other hyper-parameters than at the hook are not seen",
        file=GRADIENTS,
        text="        if not self.exchange.takes(self._hyperparameters()):\n",
        fault="        if False:\n",
        tests=(
            "tests/component/training/test_overlap.py",
            "tests/unit/ps_worker/model/test_hyperparameters.py",
        ),
    ),
    Mutant(
        name="gradients: one without a gradient sends the one of the step before",
        file=OUTGOING,
        text="                if index not in self._zeros:\n                    self._views[index].zero_()\n",
        fault="                pass\n",
        tests=("tests/component/wrap/test_wrap_gradients.py", "tests/component/training/test_overlap.py"),
    ),
    Mutant(
        name="gradients: memory that a shard still reads is written",
        file=OUTGOING,
        text="        if not self._exchange.in_flight.all_free:\n            self._exchange.in_flight.wait_free(self._indices)\n",
        fault="",
        tests=(
            "tests/component/memory/test_lent_memory.py",
            "tests/component/memory/test_region_ownership.py",
        ),
    ),
    Mutant(
        name="gradients: a second backward after a bucket has left is not seen",
        file=OUTGOING,
        text="        if len(self.arrived) != self._sent_arrivals:\n",
        fault="        if len(self.arrived) < self._sent_arrivals:\n",
        tests=("tests/component/training/test_overlap.py", "tests/component/wrap/test_gradient_views.py"),
    ),
    Mutant(
        name="weights: what a script writes into a parameter is not seen",
        file=WEIGHTS,
        text="        if written.size:\n",
        fault="        if written.size > len(self._names):\n",
        tests=(
            "tests/component/memory/test_mapped_weights.py::test_weights_that_arrive_are_seen_on_pages_that_were_written_to",
        ),
    ),
    Mutant(
        name="tensor_list.cpp: only the first gradient is looked at",
        file=LOOPS,
        text="            if (*gradient(implementation(objects[index], offset)) !=",
        fault="            if (index == 0 && *gradient(implementation(objects[index], offset)) !=",
        tests=OF_LIST,
    ),
    Mutant(
        name="tensor_list.cpp: the last tensor shows what it showed",
        file=LOOPS,
        text="index < count; index++)\n            set_data(",
        fault="index + 1 < count; index++)\n            set_data(",
        tests=OF_LIST,
    ),
    Mutant(
        name="tensor_list.cpp: what torch refuses is no refusal",
        file=LOOPS,
        text="if (address(tensor, addresses + index) != 0 || numel(",
        fault="if (address(tensor, addresses + index) != 0 && numel(",
        tests=OF_LIST,
    ),
    Mutant(
        name="tensor_list: what torch refuses to the loops is not asked of it",
        file=LIST,
        text="        if found is None or not found.show(self.objects, others.objects):\n",
        fault="        if found is None or found.show(self.objects, others.objects) is None:\n",
        tests=OF_LIST,
    ),
    Mutant(
        name="tensor_list: loops that do something else than torch are used",
        file=LIST,
        text="    return made if same_as_torch(made) else None\n",
        fault="    return made\n",
        tests=OF_LIST,
    ),
    Mutant(
        name="gradients: what lies elsewhere than where it is pushed from is not copied",
        file=OUTGOING,
        text="        return self._as_views and self._tensors.have_gradients(self._places)\n",
        fault="        return self._as_views and self._absent == []\n",
        tests=("tests/component/wrap/test_gradient_views.py",),
    ),
    Mutant(
        name="front: the half of the version before is mapped",
        file=TABLE_MEMORY,
        text="            half = self._flats.index(self.weights)\n",
        fault="            half = 1 - self._flats.index(self.weights)\n",
        tests=OF_FRONT,
    ),
    Mutant(
        name="front: parameters stay though a shard's weights come as payload",
        file=TABLE_MEMORY,
        text="bool(self._halves) and self._stays and self._laid.keys() == self._shards",
        fault="bool(self._halves) and self._stays",
        tests=OF_FRONT,
    ),
    Mutant(
        name="front: what a script writes there is looked for in the half",
        file=TABLE_MEMORY,
        text="        if front is not None and self._shows_front and turn is not None:",
        fault="        if front is not None and self._shows_front and turn is None:",
        tests=OF_FRONT,
    ),
    Mutant(
        name="front: at the end weights are those of a half that nobody shows",
        file=TABLE_MEMORY,
        text="            kept = (self.front() if self._shows_front else None) or self.weights\n",
        fault="            kept = self.weights\n",
        tests=OF_FRONT,
    ),
    Mutant(
        name="front: descriptors of what is mapped stay open",
        file=TABLE_MEMORY,
        text="            self._windows = []\n            _close(self._sources)\n",
        fault="            self._windows = []\n            self._sources = {}\n",
        tests=OF_FRONT,
    ),
    Mutant(
        name="front: tiny tables are mapped, slice by slice",
        file=TABLE_MEMORY,
        text="    return SLICE_BYTES * slices <= Layout(plan).nbytes < SMALL_BYTES * len(plan.parameters)\n",
        fault="    return 0 < slices and Layout(plan).nbytes < SMALL_BYTES * len(plan.parameters)\n",
        tests=OF_FRONT,
    ),
    Mutant(
        name="weights: a window is that of the step before",
        file=WEIGHTS,
        text="        if partition.index == self._window_of and not self._memory.apart:\n            self._kept = self._window.clone()\n",
        fault="        pass\n",
        tests=(MODULE_WAITS,),
    ),
    Mutant(
        name="weights: a graph that is older than the weights goes through backward",
        file=WEIGHTS,
        text="        self._versions = self._all.increment_versions()\n        self._trusted = True\n",
        fault="        self._trusted = True\n",
        tests=("tests/component/wrap/test_weights.py",),
    ),
    Mutant(
        name="memory: a forked child writes into its parent's gradients",
        file=MEMORY,
        text="flags = mmap.MAP_PRIVATE | _MAP_FIXED | (mmap.MAP_ANONYMOUS if self._wiped else 0)",
        fault="flags = (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if self._wiped else mmap.MAP_SHARED) | _MAP_FIXED",
        tests=(
            "tests/unit/ps_worker/memory/test_os_memory.py",
            "tests/component/memory/test_mapped_memory.py",
        ),
    ),
    Mutant(
        name="memory: a page that was swapped out is not one that was written",
        file=MEMORY,
        text="return np.asarray((kinds == 4) | (kinds == 2))",
        fault="return np.asarray(kinds == 4)",
        tests=("tests/unit/ps_worker/memory/test_overlaid_memory.py",),
    ),
    Mutant(
        name="rounded: gradients are rounded when they are made, not when they leave",
        file=ROUNDED,
        text="        if rounded is not None:\n            self._round(",
        fault="        if rounded is not None and not bool(rounded.any()):\n            self._round(",
        tests=("tests/component/tables/test_wire_dtype.py",),
    ),
    Mutant(
        name="rounds: a round begins while somebody joins",
        file=ROUNDS,
        text="            if self._held or self._begins(table, clocks):\n                self._wait()\n",
        fault="            if self._held or self._begins(table, clocks):\n",
        tests=("tests/unit/ps_worker/membership/test_round_barrier.py",),
    ),
    Mutant(
        name="rounds: a table that is out of use is waited for",
        file=ROUNDS,
        text="clocks.keys() - self._unused <= self._counts.keys()",
        fault="clocks.keys() <= self._counts.keys()",
        tests=("tests/unit/ps_worker/membership/test_round_barrier.py",),
    ),
    Mutant(
        name="loader: an iteration begins with the batch that was handed out last",
        file=LOADER,
        text="            self._count(size)\n            yield batch\n",
        fault="            yield batch\n            if self._now is not None:\n                self._count(size)\n",
        tests=("tests/component/data/test_loader_position.py",),
    ),
    Mutant(
        name="loader: a state is of any loader",
        file=LOADER,
        text="            if state[name] != value:\n",
        fault="            if state[name] is None and value:\n",
        tests=("tests/component/data/test_loader_position.py",),
    ),
    Mutant(
        name="loader: the next epoch is the same one",
        file=LOADER,
        text="            self._next, self._now = Position(epoch=start.epoch + 1), start\n",
        fault="            self._next, self._now = Position(epoch=start.epoch), start\n",
        tests=("tests/component/data/test_loader.py",),
    ),
    Mutant(
        name="share: the last worker's part is the shortest, and begins where all are long",
        file="ps_wire/spec/epochs.py",
        text="(ranks * least + min(ranks, more) for",
        fault="(ranks * least + more for",
        tests=("tests/unit/ps_worker/data/test_index_share.py",),
    ),
    Mutant(
        name="noting: who leaves does not wait for its note",
        file="ps_worker/membership/noting.py",
        text="        self._idle.wait(limit_s)\n",
        fault="",
        tests=("tests/unit/ps_worker/membership/test_noting.py",),
    ),
    Mutant(
        name="noting: of one that leaves it is said that its position is not noted",
        file="ps_worker/membership/noting.py",
        text="        self._leaves.set()\n",
        fault="",
        tests=("tests/unit/ps_worker/membership/test_noting.py",),
    ),
    Mutant(
        name="json: a text that nests as deep as it likes is parsed",
        file="ps_wire/text.py",
        text="            if max(accumulate(steps, initial=depth)) > MAX_NESTING:\n",
        fault="            if False:\n",
        tests=("tests/unit/ps_wire/test_text.py",),
    ),
    Mutant(
        name="json: brackets in texts count",
        file="ps_wire/text.py",
        text="split(b'\"')[::2])",
        fault="split(b'\"'))",
        tests=("tests/unit/ps_wire/test_text.py",),
    ),
    Mutant(
        name="json: a quote behind an escaped backslash ends no text",
        file="ps_wire/text.py",
        text='    quoted = text.replace("\\\\\\\\", "")',
        fault="    quoted = text",
        tests=("tests/unit/ps_wire/test_text.py",),
    ),
    Mutant(
        name="share: every epoch has the same order",
        file=SHARE,
        text="(self._seed * 1_000_003 + self._epoch) % (1 << 63)",
        fault="(self._seed * 1_000_003) % (1 << 63)",
        tests=("tests/component/data/test_loader.py", "tests/component/data/test_shard_loader.py"),
    ),
    Mutant(
        name="share: a share that begins in its middle begins at its start",
        file=SHARE,
        text="bounds(self._share.num_samples)[0] + piece.first\n",
        fault="bounds(self._share.num_samples)[0]\n",
        tests=("tests/component/data/test_loader_position.py", "tests/component/data/test_shard_loader.py"),
    ),
    Mutant(
        name="share: bsp deals unequal numbers of batches",
        file=SHARE,
        text="min(-(-largest // self.batch_size), least)",
        fault="min(-(-samples // (self.batch_size * self.ranks)), least)",
        tests=("tests/unit/ps_worker/data/test_index_share.py",),
    ),
    Mutant(
        name="dealing: a step says how far it has come after a batch too many",
        file=DEALING,
        text="        if self._told.at(step) != now",
        fault="        if self._told.at(step + 1) != now",
        tests=("tests/component/data/test_dealt_epochs.py", "tests/component/data/test_shard_loader.py"),
    ),
    Mutant(
        name="dealing: a request has its predecessor's number",
        file=DEALING,
        text="        self._requests += 1\n",
        fault="        self._requests |= 1\n",
        tests=("tests/component/data/test_dealt_epochs.py", "tests/component/data/test_loader.py"),
    ),
)
