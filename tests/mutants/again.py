"""Faults of going on again: shares of who comes late or never, loops that follow one another, who is told what."""

from .mutant import Mutant

BOOK = "ps_server/coordinator/epochs/epoch_book.py"
BOOK_TESTS = "tests/unit/ps_server/coordinator/epochs/test_epoch_book.py"
DEALT = "tests/component/data/test_dealt_epochs.py"

MUTANTS = (
    Mutant(
        name="again: who begins with a later epoch keeps its shares of those before",
        file=BOOK,
        text="            self._pass_over(loader, epoch, worker, incarnation)\n",
        fault="            pass\n",
        tests=(
            f"{BOOK_TESTS}::test_who_comes_and_begins_with_a_later_epoch_leaves_its_shares_of_those_before_over",
        ),
    ),
    Mutant(
        name="again: who passes over an epoch in mid-run leaves its share to the others",
        file=BOOK,
        text="        if self._dealt.get((loader, worker), (0, []))[0] != incarnation:\n",
        fault="        if True:\n",
        tests=(f"{BOOK_TESTS}::test_who_passes_over_an_epoch_in_mid_run_leaves_its_share_unused",),
    ),
    Mutant(
        name="again: the share of one who never comes again is kept for it",
        file=BOOK,
        text="            dealt.give_up([it for it in absent if dealt.owners.get(it) == ANY], NOBODY, left_over=True)\n",
        fault="",
        tests=(
            f"{BOOK_TESTS}::test_the_share_of_one_who_is_awaited_goes_to_who_comes_to_the_end_of_its_own",
            f"{DEALT}::test_who_goes_on_alone_with_a_job_that_all_have_left_uses_every_sample",
        ),
    ),
)
