"""Real gradients in virtual time: those of torch, on the weights that were really read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ps_lab.simulate.costs import Costs
from ps_lab.simulate.engine import Setup, SimulatedRun, Simulation
from ps_lab.simulate.learning import Model, ModelKind, SgdLearner, clusters
from ps_wire.errors import UsageError
from ps_wire.spec import consistency, stragglers

DATA = clusters(num_samples=400, num_inputs=12, num_classes=4)


def learner(num_workers: int = 4, **values) -> SgdLearner:
    return SgdLearner(ModelKind.MLP, DATA, num_workers=num_workers, **({"batch_size": 8} | values))


def trained(
    model: str, *, straggler: str = "none", num_shards: int = 1, num_steps: int = 60, delay: int = 0, **values
) -> tuple[SimulatedRun, SgdLearner]:
    made = learner(num_partitions=num_shards, delay=delay, **values)
    setup = Setup(
        consistency=consistency.parse(model),
        num_workers=4,
        num_shards=num_shards,
        num_steps=num_steps,
        stragglers=stragglers.parse(straggler),
        costs=Costs(control_s=0.001),
        delay=delay,
        evaluate_s=0.5,
    )
    return Simulation(setup, made).run(), made


@pytest.mark.parametrize("kind", list(ModelKind))
def test_gradients_are_those_of_torch(kind):
    """Cross-entropy of a softmax classifier, with and without a hidden layer of tanh."""
    model = Model(kind, DATA)
    weights = model.start(3)
    found, loss = model.gradient(weights, DATA.train[:8], DATA.train_labels[:8])
    flat = torch.tensor(weights, requires_grad=True)
    widths = (12, 4) if kind is ModelKind.LOGISTIC else (12, 32, 4)
    signal, at = torch.tensor(DATA.train[:8]), 0
    for layer in range(len(widths) - 1):
        into, out = widths[layer : layer + 2]
        matrix = flat[at : at + into * out].view(into, out)
        bias = flat[at + into * out : at + into * out + out]
        at += into * out + out
        signal = (torch.tanh(signal) if layer else signal) @ matrix + bias
    expected = torch.nn.functional.cross_entropy(signal, torch.tensor(DATA.train_labels[:8]))
    expected.backward()
    assert at == model.num_weights
    assert loss == pytest.approx(expected.item())
    assert np.allclose(found, flat.grad.numpy(), atol=1e-12)


def test_the_optimizer_is_that_of_torch():
    """SGD with momentum on the mean of what came, in rank order."""
    made = learner(lr=0.1, momentum=0.9)
    flat = torch.tensor(made.weights(0, 0), requires_grad=True)
    optimizer = torch.optim.SGD([flat], lr=0.1, momentum=0.9)
    for step in range(5):
        gradients = [made.gradient(worker, step, [made.weights(0, step)])[0][0] for worker in range(3)]
        made.apply(0, gradients, step + 1, frozenset())
        flat.grad = torch.tensor((gradients[0] + gradients[1] + gradients[2]) / 3)
        optimizer.step()
    assert np.allclose(made.weights(0, 5), flat.detach().numpy(), atol=1e-12)


def test_bsp_with_the_same_seed_is_the_same_curve_bit_for_bit():
    """Whoever is slow: the order of arrival does not matter, and shards do not either."""
    runs = [trained("bsp", straggler="exponential:mean=1", seed=5)[0] for _ in range(2)]
    calm, split = trained("bsp", seed=5)[0], trained("bsp", num_shards=3, seed=5)[0]
    losses = []
    for outcome in (*runs, calm, split):
        steps = outcome.steps
        order = np.lexsort((steps.whole("worker"), steps.whole("clock")))
        losses.append(steps.seconds("loss")[order])
    assert all(np.array_equal(losses[0], other) for other in losses[1:])
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("model", ["bsp", "bsp:backup=1", "ssp:2", "asp", "asp:max_delay=6"])
def test_every_model_learns(model):
    """The loss of all samples falls to less than half, and evaluations are in order."""
    outcome, _ = trained(model, straggler="transient:p=0.2,f=4", num_shards=2, lr=0.1)
    losses = [it.metrics["train_loss"] for it in outcome.evaluations]
    assert losses[-1] < losses[0] / 2
    assert [it.time_s for it in outcome.evaluations] == sorted(it.time_s for it in outcome.evaluations)
    assert outcome.evaluations[-1].time_s == outcome.duration_s


def test_a_gradient_is_of_the_weights_that_were_read():
    """Two workers under asp: the slower one reads version 0, and sends when the other's push is applied."""
    made = learner(num_workers=2, lr=0.5)
    start = made.weights(0, 0)
    slow = stragglers.parse("constant:f=1.5")
    setup = Setup(consistency=consistency.parse("asp"), num_workers=2, num_steps=1, stragglers=slow)
    own = [learner(num_workers=2).gradient(worker, 0, [start])[0][0] for worker in range(2)]
    outcome = Simulation(setup, made).run()
    assert sorted(outcome.steps.whole("tau")) == [0, 1]
    assert np.allclose(made.weights(0, 2), start - 0.5 * (own[0] + own[1]), atol=1e-12)


def test_staleness_on_purpose_is_a_queue_of_gradients():
    """With tau = 2 the first update is of step 0, and comes with step 2; with 0 it is bsp, bit for bit."""
    plain, late = learner(lr=0.1), learner(lr=0.1, delay=2)
    start = late.weights(0, 0)
    for step in range(2):
        late.apply(0, late.gradient(0, step, [late.weights(0, step)])[0], step + 1, frozenset())
        assert np.array_equal(late.weights(0, step + 1), start)
    first = late.gradient(0, 0, [start])[0][0]
    late.apply(0, late.gradient(0, 2, [late.weights(0, 2)])[0], 3, frozenset())
    assert np.array_equal(late.weights(0, 3), start - 0.1 * first)
    assert np.array_equal(plain.weights(0, 0), start)


def test_more_staleness_is_worse_at_equal_updates():
    """The claim of the literature, in its clean control: same updates, same batches, later gradients."""
    losses = []
    for delay in (0, 8, 24):
        outcome, _ = trained("bsp", delay=delay, lr=0.5, momentum=0.5, num_steps=80)
        losses.append(outcome.evaluations[-1].metrics["train_loss"])
    assert losses == sorted(losses)
    assert losses[2] > 2 * losses[0]


def test_a_late_worker_gets_the_weights_of_its_version():
    """With backup workers older versions are kept while somebody may ask for them, and no longer."""
    outcome, made = trained("bsp:backup=2", straggler="exponential:mean=2", num_shards=2, num_steps=100)
    assert outcome.dropped
    assert sum(np.array_equal(made.weights(0, version), made.weights(0, 100)) for version in range(101)) > 90


def test_batches_are_the_same_under_every_model():
    """They are of the seed, the worker and the step alone, and workers have different ones."""
    one, other = learner(seed=1), learner(seed=1)
    start = [one.weights(0, 0)]
    assert one.gradient(2, 7, start)[1] == other.gradient(2, 7, start)[1]
    assert one.gradient(1, 7, start)[1] != other.gradient(2, 7, start)[1]
    assert learner(seed=2).gradient(2, 7, start)[1] != other.gradient(2, 7, start)[1]


@pytest.mark.parametrize("values", [{"lr": 0.0}, {"lr": float("nan")}, {"momentum": 1.0}, {"delay": 10**6}])
def test_what_makes_no_sense_is_refused(values):
    """Before anything is trained."""
    with pytest.raises(UsageError, match="simulate: "):
        learner(**values)
