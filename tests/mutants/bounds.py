"""Faults in what is bounded, and at the edges of starts: generations, memory, hand-offs, tokens, orders."""

from tests.mutants.mutant import Mutant

GENERATIONS = "tests/unit/ps_server/coordinator/fleet/test_generations.py"
ROLLED_BACK = "tests/unit/ps_server/coordinator/test_rolled_back.py"
SHARD = "tests/unit/ps_server/shard/test_shard.py"
GOING_BACK = "tests/component/snapshots/test_going_back.py"
HAND_OFF = "tests/unit/ps_server/shard/test_hand_off.py"
GARBAGE = "tests/unit/ps_server/shard/test_garbage.py"
CONNECTING = "tests/component/connections/test_connecting.py"
ROLLBACK = "tests/component/snapshots/test_rollback.py"
PAST_16_BITS = f"{ROLLBACK}::test_a_service_goes_on_past_65535_generations"

MUTANTS = (
    Mutant(
        name="generations: they end with 16 bits",
        file="ps_wire/frames/frame.py",
        text="MAX_GENERATION = (1 << 32) - 1  #",
        fault="MAX_GENERATION = (1 << 16) - 1  #",
        tests=(GENERATIONS, PAST_16_BITS),
    ),
    Mutant(
        name="generations: incarnations of a rollback begin as after the one before",
        file="ps_server/coordinator/recovery.py",
        text="    return generation * (MAX_GENERATION + 1)\n",
        fault="    return 1 << 48\n",
        tests=(GENERATIONS, PAST_16_BITS),
    ),
    Mutant(
        name="frame: the upper half of an incarnation is lost",
        file="ps_wire/frames/frame.py",
        text="        frame.generation,\n        frame.incarnation,\n",
        fault="        frame.generation,\n        frame.incarnation & 0xFFFFFFFF,\n",
        tests=("tests/unit/ps_wire/frames/test_frame.py",),
    ),
    Mutant(
        name="resume: an incarnation that nobody has given is taken",
        file="ps_server/coordinator/member_streams.py",
        text="        of_before = resume.incarnation <= runner.job.roster.floor  #",
        fault="        of_before = True  #",
        tests=(ROLLED_BACK,),
    ),
    Mutant(
        name="memory: a slice per worker is counted where pushes are applied as they come",
        file="ps_server/shard/memory_budget.py",
        text="        staged = num_workers if gate.aggregates else 0  #",
        fault="        staged = num_workers  #",
        tests=(SHARD,),
    ),
    Mutant(
        name="memory: what torch does not give is still counted",
        file="ps_server/shard/shard.py",
        text="        except Exception as error:\n            with self._jobs.lock:\n",
        fault="        except (OSError, MemoryError, OverflowError) as error:\n            with self._jobs.lock:\n",
        tests=(SHARD,),
    ),
    Mutant(
        name="recovery: a snapshot that does not fit counts as one that cannot be used",
        file="ps_server/coordinator/recovery.py",
        text="            except MemoryLimitExceeded as error:  # nothing is wrong with the snapshot\n",
        fault="            except AssertionError as error:\n",
        tests=(GOING_BACK,),
    ),
    Mutant(
        name="recovery: who comes again to a job that did not fit begins it anew",
        file="ps_server/coordinator/recovery.py",
        text="            self._asleep.add(job)\n            raise refused\n",
        fault="            raise refused\n",
        tests=(GOING_BACK,),
    ),
    Mutant(
        name="sync: a folder above that may not be opened is an error",
        file="ps_wire/snapshot/writing.py",
        text="        with suppress(PermissionError):\n",
        fault="        with suppress(KeyError):\n",
        tests=(GENERATIONS, HAND_OFF),
    ),
    Mutant(
        name="hand-off: it is gone though the process that could not set it aside never served",
        file="ps_server/shard/hand_off.py",
        text="                used.rename(self.path)\n",
        fault="",
        tests=(HAND_OFF,),
    ),
    Mutant(
        name="connection: a token of the process before is final over gRPC",
        file="ps_worker/transport/connection.py",
        text="raise _for_now(refusal(frame))",
        fault="raise refusal(frame)",
        tests=(CONNECTING,),
    ),
    Mutant(
        name="connection: a token of the process before is final over a socket",
        file="ps_worker/transport/carrier_choice.py",
        text="                except StrangerRefused:  #",
        fault="                except KeyError:  #",
        tests=(CONNECTING,),
    ),
    Mutant(
        name="follower: an order that is not known ends its stream",
        file="ps_server/agreement/messages.py",
        text='    if kind is None:\n        return ""\n',
        fault="",
        tests=("tests/unit/ps_server/shard/test_follower.py",),
    ),
    Mutant(
        name="tables: all objects are looked through again and again while one is opened",
        file="ps_server/shard/orders.py",
        text="    with garbage.PAUSE:\n",
        fault="    if True:\n",
        tests=(GARBAGE,),
    ),
    Mutant(
        name="tables: the collector is on again when the first of several is over",
        file="ps_server/shard/garbage.py",
        text="            if self._lasting == 0 and self._was_on:\n",
        fault="            if self._was_on:\n",
        tests=(GARBAGE,),
    ),
    Mutant(
        name="tables: one that others have made is compared on the event loop",
        file="ps_server/coordinator/member_streams.py",
        text="    return known[spec.number] if same else spec\n",
        fault="    return spec\n",
        tests=(GARBAGE,),
    ),
)
