"""What workers say of shares is bounded: their sums go into snapshots, and back to other workers."""

from __future__ import annotations

import pytest

from ps_server.coordinator.share_messages import check_mark, check_samples
from ps_wire.errors import UsageError
from ps_wire.snapshot.json_fields import MAX_COUNT, MAX_SAMPLES
from ps_wire.spec.epochs import PieceMark
from ps_wire.v1 import coordinator_pb2 as pb

MOST = {"step": MAX_COUNT, "samples": MAX_SAMPLES, "pace": MAX_SAMPLES}


def test_a_mark_says_so_much():
    assert check_mark(pb.Mark(**MOST)) == PieceMark(**MOST)
    assert check_samples(MAX_SAMPLES) == MAX_SAMPLES


@pytest.mark.parametrize("field", MOST)
def test_and_no_more(field: str):
    with pytest.raises(UsageError, match=str(MOST[field] + 1)):
        check_mark(pb.Mark(**{field: MOST[field] + 1}))


def test_samples_that_nobody_has_are_a_named_error():
    with pytest.raises(UsageError, match="samples: at most"):
        check_samples(1 << 63)
