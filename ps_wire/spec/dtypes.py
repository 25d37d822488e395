"""The dtypes that tables can have, by torch's names."""

from __future__ import annotations

from ps_wire.errors import ParameterUnsupported

ITEM_BYTES: dict[str, int] = {"float32": 4, "float64": 8}


def item_bytes(dtype: str, parameter: str) -> int:
    """Bytes of one element.

    Raises:
        ParameterUnsupported: no table can hold this dtype; the parameter is named.
    """
    size = ITEM_BYTES.get(dtype)
    if size is None:
        raise ParameterUnsupported(
            f"parameter {parameter!r} has dtype {dtype}; the servers hold {', '.join(ITEM_BYTES)}. "
            "Keep the weights in float32 (autocast does) and let the optimizer hold those.",
            parameter=parameter,
            dtype=dtype,
        )
    return size
