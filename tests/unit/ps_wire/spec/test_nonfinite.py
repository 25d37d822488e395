"""What a job does with non-finite gradients, as typed."""

from __future__ import annotations

import pytest

from ps_wire.errors import UsageError
from ps_wire.spec.nonfinite import NonFinite, parse


@pytest.mark.parametrize("choice", list(NonFinite))
def test_what_is_printed_is_parsed(choice):
    """parse(str(choice)) is choice, with spaces around it, too."""
    assert parse(f" {choice}\n") is choice


@pytest.mark.parametrize("text", ["", "ERROR", "drop", "error,skip"])
def test_another_word_is_refused_with_the_valid_ones(text):
    """As a usage error."""
    with pytest.raises(UsageError, match="valid are: error, skip, apply") as refused:
        parse(text)
    assert refused.value.facts == {"spec": text}
