"""Whether torch can take a backward apart: gradients of a stage's inputs first, those of its weights later.

Torch computes the second half from where the ways of weights meet those of the inputs. A way that never does,
to an output that no input leads to, is left out, and the weights on it get no gradient. Where the ways of one
weight meet those of the inputs twice, the part between is gone through twice. Nothing is said of either. It
also detaches outputs in place, which views do not permit.

It must not know schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

Node = Any  # of autograd's graph


def can_be_halved(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], *, last: bool) -> bool:
    """Whether both halves together are the backward.

    Args:
        inputs: of a forward, leaves of its graph.
        outputs: that it gave, with their graph.
        last: a loss is made of the outputs, so that they meet in it.
    """
    if not last and any(it._is_view() for it in outputs):
        return False
    roots = [_node_of(it) for it in outputs if it.requires_grad]
    fed = _fed({_node_of(it) for it in inputs if it.requires_grad}, roots)
    bare = [it for it in roots if it not in fed]
    if bare and not (last and len(bare) < len(roots)):
        return False
    met: dict[Node, int] = {}  # how often the ways of a weight come in
    for entry in (*bare, *(behind for node in fed for behind in _behind(node) if behind not in fed)):
        for node in _reached([entry]):
            if not _behind(node):
                met[node] = met.get(node, 0) + 1
    return all(count == 1 for count in met.values())


def _node_of(tensor: torch.Tensor) -> Node:
    return tensor.grad_fn or torch.autograd.graph.get_gradient_edge(tensor).node


def _behind(node: Node) -> list[Node]:
    return [it for it, _ in node.next_functions if it is not None]


def _reached(roots: Iterable[Node]) -> set[Node]:
    """The nodes to which gradients come from these, and these."""
    found: set[Node] = set()
    rest = list(roots)
    while rest:
        node = rest.pop()
        if node not in found:
            found.add(node)
            rest += _behind(node)
    return found


def _fed(leaves: set[Node], roots: Sequence[Node]) -> set[Node]:
    """The nodes that lead on to one of these leaves."""
    users: dict[Node, list[Node]] = {}
    ends = []
    for node in _reached(roots):
        if node in leaves:
            ends.append(node)
        for behind in _behind(node):
            users.setdefault(behind, []).append(node)
    found: set[Node] = set()
    while ends:
        node = ends.pop()
        if node not in found:
            found.add(node)
            ends += users.get(node, [])
    return found
