"""Consistency models as typed: parsed once, printed back the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import ConsistencyInvalid
from ps_wire.spec.consistency import ASP, BSP, SSP, VALID, parse

BOUNDS = st.integers(0, 10**9 - 1)
MODELS = (
    st.just(BSP()) | st.builds(BSP, BOUNDS) | st.just(ASP()) | st.builds(SSP, BOUNDS) | st.builds(ASP, BOUNDS)
)


@given(MODELS)
def test_what_is_printed_is_parsed(model):
    """parse(str(model)) == model."""
    assert parse(str(model)) == model


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("bsp", BSP()),
        ("bsp:backup=1", BSP(1)),
        ("bsp:backup=12", BSP(12)),
        ("asp", ASP()),
        ("asp:max_delay=8", ASP(8)),
        ("asp:max_delay=0", ASP(0)),
        ("ssp:0", SSP(0)),
        ("ssp:12", SSP(12)),
        (" ssp:3\n", SSP(3)),
        ("ssp:007", SSP(7)),
        ("ssp:-0", SSP(0)),
    ],
)
def test_valid_specs(text, model):
    """Blanks around a spec do not matter; SSP names its bound."""
    assert parse(text) == model


@pytest.mark.parametrize(
    "text", ["", "sync", "BSP", "bsp:", "bsp:1", "asp:", "asp:4", "ssp", "ssp3", ":", "a:b"]
)
def test_an_unknown_spec_lists_the_valid_ones(text):
    """The error repeats what came and says what is valid."""
    with pytest.raises(ConsistencyInvalid) as refused:
        parse(text)
    assert repr(text) in refused.value.message
    assert VALID in refused.value.message
    assert all(name in VALID for name in ("bsp", "ssp:S", "asp"))
    assert refused.value.facts == {"spec": text}


@pytest.mark.parametrize(
    "bound", ["", "x", "1.5", "--1", "+1", "1e3", " 1", "-", "٣", "²", "9" * 10, "9" * 10_000, "1_0"]
)
def test_a_bound_that_is_no_whole_number_is_refused(bound):
    """Only a few ASCII digits are a bound."""
    with pytest.raises(ConsistencyInvalid, match="the bound must be a whole number") as refused:
        parse(f"ssp:{bound}")
    assert repr(bound) in refused.value.message
    assert refused.value.facts == {"spec": f"ssp:{bound}"}


@pytest.mark.parametrize("make", [lambda: parse("ssp:-1"), lambda: SSP(-1)])
def test_a_negative_bound_is_refused(make):
    """Typed or built, the message is the same."""
    with pytest.raises(ConsistencyInvalid, match=r"staleness must be >= 0, got -1$") as refused:
        make()
    assert refused.value.facts == {"staleness": -1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("asp:max_delay=", "whole number, got ''"),
        ("asp:max_delay=x", "'x'"),
        ("asp:max_delay=-1", ">= 0, got -1"),
        ("bsp:backup=", "whole number, got ''"),
        ("bsp:backup=x", "'x'"),
        ("bsp:backup=-1", ">= 1, got -1"),
        ("bsp:backup=0", ">= 1, got 0"),
    ],
)
def test_a_delay_that_makes_no_sense_is_refused(text, why):
    """As SSP's bound."""
    with pytest.raises(ConsistencyInvalid, match=why):
        parse(text)


@given(st.text(max_size=12))
def test_any_text_parses_or_is_refused(text):
    """Nothing that a person types raises another error."""
    try:
        model = parse(text)
    except ConsistencyInvalid:
        return
    assert parse(str(model)) == model
