"""The gate: when a pull is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_server.agreement.gate import Gate, gate_of
from ps_wire.spec.consistency import ASP, BSP, SSP

CLOCKS = st.lists(st.integers(0, 20), min_size=1)


@pytest.mark.parametrize(
    ("model", "aggregates", "staleness"),
    [(BSP(), True, 0), (SSP(0), False, 0), (SSP(3), False, 3), (ASP(), False, None)],
    ids=str,
)
def test_each_model_has_its_gate(model, aggregates, staleness):
    """The same two parameters carry all models; SSP with s = 0 is not BSP."""
    assert gate_of(model) == Gate(aggregates=aggregates, staleness=staleness)


def test_what_is_no_model_has_no_gate():
    """A model without a gate is our own bug, and is found at once."""
    with pytest.raises(AssertionError):
        gate_of("bsp")


@given(st.integers(0, 20), st.integers(0, 20), CLOCKS)
def test_bsp_opens_at_the_version_of_the_clock(clock, version, clocks):
    """In BSP a pull at clock c gets version c, whatever the others' clocks."""
    assert gate_of(BSP()).opens(clock, version, min(clocks)) == (version >= clock)


@given(st.integers(0, 5), CLOCKS, st.integers(0, 100), st.data())
def test_ssp_opens_while_the_slowest_is_at_most_s_behind(staleness, clocks, version, data):
    """In SSP a pull at clock c is answered when min over live workers of clock >= c - s."""
    clock = data.draw(st.sampled_from(clocks))
    behind = clock - min(clocks)
    assert gate_of(SSP(staleness)).opens(clock, version, min(clocks)) == (behind <= staleness)


@given(st.integers(0, 20), CLOCKS, st.integers(0, 20))
def test_asp_is_always_open(clock, clocks, version):
    """With s = inf nobody ever waits."""
    assert gate_of(ASP()).opens(clock, version, min(clocks))
