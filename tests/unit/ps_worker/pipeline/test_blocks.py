"""Stages are the model's own modules: composed they are the model, to the bit. The rest is refused."""

from __future__ import annotations

import copy
import itertools
import random
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from ps_wire.errors import PipelineError
from ps_worker.pipeline.blocks import blocks_of
from tests.unit.ps_worker.pipeline.models import (
    CHARACTERS,
    CONTEXT,
    WIDTH,
    Block,
    Encoder,
    Nested,
    Skips,
    Transformer,
)

TOKENS = torch.randint(CHARACTERS, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
NUMBERS = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(2))


def plain():
    return nn.Sequential(
        nn.Linear(5, 7),
        nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 7)),
        nn.BatchNorm1d(4),
        nn.Linear(7, 2),
    )


CASES = {
    "sequential": (plain, NUMBERS),
    "transformer": (Transformer, TOKENS),
    "nested": (Nested, NUMBERS),
    "skips": (Skips, NUMBERS),
    "encoder": (Encoder, NUMBERS),
}


def run(model, stages, x):
    """Output, loss and gradients, with the draws of dropout that a seed gives."""
    model.zero_grad()
    torch.manual_seed(5)
    values = (x,)
    for stage in stages:
        values = stage(*values)
        values = values if isinstance(values, tuple) else (values,)
    loss = sum(value.square().mean() for value in values)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return values, gradients


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_stages_composed_are_the_model_to_the_bit(case, training):
    """Outputs, gradients and buffers, in both modes, cut at all places and at the first and the last."""
    make, x = CASES[case]
    torch.manual_seed(0)
    model = make().train(training)
    whole = copy.deepcopy(model)
    expected, gradients = run(whole, [whole], x)
    blocks = blocks_of(model)
    for inner in (range(1, len(blocks)), (1, len(blocks) - 1)):
        cut = copy.deepcopy(model)
        again = blocks_of(cut)
        stages = [again.stage(begin, end) for begin, end in itertools.pairwise((0, *inner, len(again)))]
        assert all(module.training is training for module in cut.modules())
        got, mine = run(cut, stages, x)
        assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True)), inner
        assert mine.keys() == gradients.keys()
        assert all(torch.equal(gradients[name], mine[name]) for name in gradients), inner
        assert all(torch.equal(one, other) for one, other in zip(whole.buffers(), cut.buffers(), strict=True))


def test_the_blocks_of_a_sequential_are_its_modules_and_those_of_sequentials_in_it():
    assert blocks_of(plain()).names == ("0", "1.0", "1.1", "1.2", "2", "3")


def test_the_blocks_of_a_trunk_are_its_elements_and_the_modules_around_it():
    assert blocks_of(Transformer(3)).names == (
        *("embedding", "blocks.0", "blocks.1", "blocks.2", "norm", "head"),
    )


def test_trunks_and_sequentials_in_modules_are_opened():
    names = ("stem.0", "stem.1.0", "stem.1.1", "trunk.layers.0", "trunk.layers.1", "trunk.layers.2", "head")
    assert blocks_of(Nested()).names == names


def test_an_element_with_a_way_around_its_modules_is_one_block():
    """`Block` holds a Sequential; a cut in it would pass on its input, too."""
    assert blocks_of(nn.Sequential(Block(), Block())).names == ("0", "1")


def test_a_list_of_what_works_side_by_side_is_no_place_for_cuts():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

        def forward(self, x):
            return torch.cat([head(x) for head in self.heads], dim=-1)

    assert blocks_of(nn.Sequential(Heads(), Heads())).names == ("0", "1")


def test_torchs_encoder_is_opened_if_it_need_not_look_at_masks():
    layers = ("encoder.layers.0", "encoder.layers.1", "encoder.layers.2")
    assert blocks_of(Encoder()).names == ("stem", *layers, "encoder.norm")

    class Looking(Encoder):
        def forward(self, x):
            return self.encoder(self.stem(x), mask=self.mask)

    assert blocks_of(Looking()).names == ("stem", "encoder")


def test_parameters_are_the_models_own_by_the_models_names():
    model = Transformer(2)
    blocks = blocks_of(model)
    own = dict(model.named_parameters())
    for begin, end in [(0, 1), (1, 3), (3, 5), (0, 5)]:
        stage = blocks.stage(begin, end)
        names = blocks.parameter_names(begin, end)
        assert {id(own[name]) for name in names} == {id(it) for it in stage.parameters()}
        assert list(names) == [name for name in own if name in names]
    assert blocks.parameter_names(0, 1) == ("position", "embedding.weight")
    assert blocks.parameter_names(4, 5) == ("embedding.weight",), "the head's, by its name in the model"
    assert set(dict(blocks.stage(1, 2).named_parameters())) == set(blocks.parameter_names(1, 2))


def test_the_state_of_a_stage_is_the_models():
    """Names as in the model's, and buffers that the model does not keep are not kept."""
    model = Transformer(2)
    blocks = blocks_of(model)
    states = [blocks.stage(index, index + 1).state_dict() for index in range(len(blocks))]
    assert {name for state in states for name in state} == set(model.state_dict())
    assert "mask" in dict(blocks.stage(0, 1).named_buffers())
    before = set(vars(model))
    blocks_of(Skips())
    assert set(vars(model)) == before


def test_nothing_is_left_on_a_model_with_constants():
    model = Skips()
    before = dict(vars(model))
    blocks = blocks_of(model)
    blocks.stage(0, len(blocks))
    assert vars(model).keys() == before.keys()
    assert not list(model.buffers())


def test_a_model_on_meta_is_cut_without_memory():
    model = Transformer(4).to("meta")
    blocks = blocks_of(model)
    assert all(it.is_meta for it in blocks.stage(1, 3).parameters())
    mask = torch.empty(CONTEXT, 1, device="meta")
    assert blocks.stage(1, 3)(torch.empty(2, CONTEXT, WIDTH, device="meta"), mask)[0].is_meta


def test_weights_that_replace_the_models_are_taken_by_the_next_stage():
    model = Transformer(1).to("meta")
    blocks = blocks_of(model)
    model.to_empty(device="cpu")
    assert not any(it.is_meta for it in blocks.stage(0, len(blocks)).parameters())


def test_hooks_of_blocks_stay():
    model, heard = Transformer(2), []
    model.blocks[1].register_forward_hook(lambda *_: heard.append("blocks.1"))
    blocks = blocks_of(model)
    assert heard == []
    blocks.stage(0, 3)(TOKENS)
    assert heard == ["blocks.1"]


def test_a_cut_is_named_after_a_block_or_a_module_that_begins_with_it():
    blocks = blocks_of(Nested())
    assert (blocks.index("stem.1.1"), blocks.index("trunk"), blocks.index("stem.1")) == (2, 3, 1)
    with pytest.raises(PipelineError, match=r"no block is named 'tronk'; there are stem\.0, stem\.1\.0,"):
        blocks.index("tronk")


def test_a_module_that_runs_twice_names_no_cut():
    twice = nn.Linear(4, 4)
    blocks = blocks_of(nn.Sequential(twice, nn.Tanh(), twice))
    assert blocks.names == ("0", "1", "0")
    assert blocks.parameter_names(2, 3) == blocks.parameter_names(0, 1)
    with pytest.raises(PipelineError, match="'0' runs 2 times"):
        blocks.index("0")


def test_no_cut_is_before_what_writes_into_its_input():
    """The input of a stage is what autograd gave it: torch refuses to write there."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    assert blocks_of(model).names == ("0", "2")


def test_another_thread_may_use_models_meanwhile():
    """While torch traces, it has replaced methods of all modules."""
    other, found = nn.Linear(3, 3), []

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

        def forward(self, x):
            thread = threading.Thread(target=lambda: found.append(other(torch.ones(1, 3))))
            thread.start()
            thread.join()
            return self.blocks[1](self.blocks[0](x))

    assert blocks_of(Slow()).names == ("blocks.0", "blocks.1")
    assert all(torch.equal(it, other(torch.ones(1, 3))) for it in found)
    assert len(found) == 2


# -- what is refused -------------------------------------------------------------------------------------


class Trunked(nn.Module):
    """Two blocks, and what a test makes of them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.last = None


class Deciding(Trunked):
    def forward(self, x):
        x = self.blocks[0](x)
        if x.sum() > 0:
            x = -x
        return self.blocks[1](x)


class Sizes(Trunked):
    def forward(self, x):
        rows = x.shape[0]
        return self.blocks[1](self.blocks[0](x)).view(rows, -1)


class Functional(Trunked):
    def forward(self, x):
        return self.blocks[1](F.dropout(self.blocks[0](x), 0.1, self.training))


class Drawing(Trunked):
    def forward(self, x):
        x = self.blocks[0](x)
        return x if torch.rand([]) < 0.5 else self.blocks[1](x)


class Shuffling(Trunked):
    def forward(self, x):
        for block in random.sample(list(self.blocks), 2):
            x = block(x)
        return x


class Keeping(Trunked):
    def forward(self, x):
        self.last = self.blocks[0](x)
        return self.blocks[1](self.last)


class ByName(Trunked):
    def forward(self, *, x):
        return self.blocks[1](self.blocks[0](x))


class Anything(Trunked):
    def forward(self, *inputs):
        return self.blocks[1](self.blocks[0](*inputs))


class Looping(Trunked):
    def forward(self, x):
        for row in x:
            x = self.blocks[0](row)
        return x


class Functions(nn.Module):
    def forward(self, x):
        return x.relu()


REFUSED = {
    Deciding: r"Deciding .*decides by a value .*line \d+: `if x.sum\(\) > 0:`.* a module of its own",
    Sizes: r"Sizes cannot be cut between blocks.0 and blocks.1: `.*` would cross, which is no tensor",
    Functional: r"Functional .*in training than in evaluation \(`dropout\(.*nn.Dropout is for F.dropout",
    Drawing: r"Drawing .*draws random numbers to decide",
    Shuffling: r"Shuffling .*draws random numbers to decide",
    Keeping: r"Keeping .*keeps a value in self.last, which is lost",
    ByName: r"ByName .*wants x by name",
    Anything: r"Anything .*names no input",
    Looping: r"Looping .*cannot be followed \(line \d+: `for row in x:`\)|Looping .*decides by a value",
    Functions: r"Functions .*calls no module",
}


@pytest.mark.parametrize("model", REFUSED, ids=lambda it: it.__name__)
def test_what_cannot_be_cut_is_refused_by_name_with_the_reason(model):
    made = model()
    before = [dict(vars(module)) for module in made.modules()]
    with pytest.raises(PipelineError, match=REFUSED[model]):
        blocks_of(made)
    assert [dict(vars(module)) for module in made.modules()] == before


def test_hooks_on_the_whole_model_are_refused():
    model = plain()
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(PipelineError, match="Sequential has hooks on the whole model"):
        blocks_of(model)


def test_inside_of_a_block_all_of_it_is_allowed():
    """It is one call: what it does with values is its own."""
    model = nn.Sequential(Deciding(), Functional(), Keeping(), Drawing(), Shuffling())
    assert blocks_of(model).names == ("0", "1", "2", "3", "4")


def test_what_is_no_tensor_and_was_not_seen_is_refused_when_it_would_cross():
    class Pair(nn.Module):
        def forward(self, x):
            return x, 3

    class Second(nn.Module):
        def forward(self, pair):
            return pair[0]

    blocks = blocks_of(nn.Sequential(Pair(), Second()))
    assert torch.equal(blocks.stage(0, 2)(torch.ones(1)), torch.ones(1))
    with pytest.raises(PipelineError, match="cannot be cut before 1: a tuple would cross"):
        blocks.stage(0, 1)(torch.ones(1))


def test_a_stage_that_is_none_is_refused():
    with pytest.raises(PipelineError, match=r"blocks \[2, 2\) does not exist"):
        blocks_of(plain()).stage(2, 2)
