"""Law 1 with gradients and weights that travel as 16-bit numbers, over every carrier on which they travel."""

from __future__ import annotations

import pytest

from tests.component.reference import assert_same
from tests.component.rounding import reference, served
from tests.component.service import Cluster


@pytest.mark.parametrize("carrier", ["uds", "tcp", "grpc"])
@pytest.mark.parametrize("wire_dtype", ["bf16", "fp16"])
def test_law_1_holds_for_rounded_gradients_and_weights(server: Cluster, carrier: str, wire_dtype: str):
    """The mean is over the widened gradients, the optimizer's weights and state are never rounded."""
    wire_dtypes = [wire_dtype] * 2
    expected = reference(wire_dtypes)
    for model in served(server, wire_dtypes, carrier=carrier):
        assert_same(model, expected)
