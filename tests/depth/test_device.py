"""Every public function of the room gives the same values on every device, and forgets `device=` nowhere."""

import inspect

import pytest
import torch

from labkit import compute
from labkit.depth import covariance, jumpboard, network, normalization, starts, study
from labkit.depth import task as task_room
from labkit.depth.network import ConvPostNormResNet, PostNormResNet, fit
from labkit.depth.task import TeacherTask, digits_sample
from tests.depth.conftest import generators, randn
from tests.everywhere import made_everywhere, same_everywhere

X, Y = randn(30, 5), torch.arange(30) % 3
IMAGES = randn(6, 1, 5, 5, seed=1)
G, PHI = randn(2, 20, 3, seed=2), randn(2, 20, 4, seed=3)
COV = covariance.gradient_covariance(randn(2, 20, 4, seed=4))
HALF = torch.tensor([0.5, 2.0], dtype=torch.float64)
PLACE = {"device": "cpu", "dtype": torch.float64}
DENSE = PostNormResNet(5, 8, 2, 6, 3, generators=generators(n=2), activation="tanh", **PLACE)
CONV = ConvPostNormResNet(1, 4, 2, 5, 3, generators=generators(n=2), activation="tanh", **PLACE)
W1, CONV_W1 = jumpboard.draw_features(DENSE, 4), jumpboard.draw_features(CONV, 4)


def moved(function, model):
    """`function(model, ...)` with the weights as an argument, so that a device can move them."""
    return lambda params, *inputs: function(network.replace(model, params=params), *inputs)


def found(model, x, y, w1):
    return jumpboard.direction(model, 1, x, y, w1)


def everything(model, x, y, w1):
    """All that acts on a model, a direction and a sample."""
    along = found(model, x, y, w1)
    board = jumpboard.jumpboard(model, 1, x, y, w1)
    trained = fit(board.model, x, y, 3, batch=4).model
    t, g = x.new_tensor([0.0, 0.5]), jumpboard.activation_gradient(model, 1, x, y)
    return (
        (along.v, along.gain, along.energy),
        jumpboard.slope(model, along, x, y),
        jumpboard.scores(model, along, x, y),
        tuple(jumpboard.evaluate(model, along, x, y)),
        jumpboard.gain_curve(model, along, x, y, t),
        jumpboard.line_curvature(model, along, x, y, 1.0),
        tuple(jumpboard.line_search(model, along, x, y)),
        jumpboard.insert_direction(model, along, 0.5)(x),
        board.model(x),
        trained(x),
        jumpboard.fall_back(trained, board.model, x, y)[1:],
        tuple(jumpboard.parameter_step(model, x, y)[1]),
        jumpboard.temperature_gain(model(x), y, model(x), y),
        jumpboard.mean_loss(model, x, y),
        jumpboard.sample_losses(model(x), y, "prob"),
        tuple(jumpboard.moments(g, jumpboard.features(model, model.bottom(x, 1), w1))),
        jumpboard.draw_features(model, 3),
        study.block_scores(model, 1, (x, y), (x, y), (2, 3)),
        study.mean_scores(jumpboard.scores(model, along, x, y), 2),
        jumpboard.quadratic_bound(along.gain, along.energy, t),
        model.least_rms(x),
    )


def insertions(model, x):
    each = [network.insert_block(model, 1, 3, init)(x) for init in network.STARTS]
    names = network.block_names(model, 1)
    block = {"w1": model.params["w1.1"], "w2": model.params["w2.1"]}
    return *each, model.params[names[0]], network.with_block(model, 1, block, model.blocks[0])(x)


def observed(model, x, y, w1):
    """What is read off moments and along lines."""
    seen, test = jumpboard.observe(model, 1, x, y, w1), (x.flip(0), y)
    lines = [starts.steepest(model, 1, x, y, 3, *start) for start in (("zero_in", "tanh"), ("zero_both", "relu"))]
    lines.append(jumpboard.direction_from(seen, 1, w1[:, :2]))
    t = x.new_tensor([0.0, 0.5])
    return (
        jumpboard.energy_by_width(seen, jumpboard.observe(model, 1, *test, w1), 0.1),
        jumpboard.predictable_energy(model, 1, x, model(x)[0].softmax(-1)),
        tuple(jumpboard.margins(model, 1, (x, y), test, w1).values()),
        tuple(tuple(starts.journey(model, line, *test, 0.1, points=3)) for line in lines),
        starts.gain_along(lines[0], x, y, t),
        starts.slope_along(lines[0], *test),
        starts.descend(lines[0], x, y, 3)(x),
    )


LABELS = torch.arange(6) % 3
CALLS = {
    "rms_norm": (normalization.rms_norm, X),
    "layer_norm": (normalization.layer_norm, X),
    "rms": (normalization.rms, X),
    "jacobian": (lambda x: normalization.jacobian(x, 1e-2, "layer"), X),
    "singular_values": (normalization.singular_values, X),
    "lipschitz_bound": (normalization.lipschitz_bound, HALF, HALF),
    "pair_bound": (normalization.pair_bound, X, X.flip(0)),
    "curvature_bound": (normalization.curvature_bound, X),
    "normalized": (lambda x: normalization.normalized(x, 1e-3), X),
    "everything on vectors": (moved(everything, DENSE), DENSE.params, X, Y, W1),
    "everything on images": (moved(everything, CONV), CONV.params, IMAGES, LABELS, CONV_W1),
    "observed on vectors": (moved(observed, DENSE), DENSE.params, X, Y, W1),
    "observed on images": (moved(observed, CONV), CONV.params, IMAGES, LABELS, CONV_W1),
    "insertions": (moved(insertions, DENSE), DENSE.params, X),
    "insertions in images": (moved(insertions, CONV), CONV.params, IMAGES),
    "explained_energy": (lambda g, p: jumpboard.explained_energy(jumpboard.moments(g, p)), G, PHI),
    "debiased_signal": (jumpboard.debiased_signal, G, PHI),
    "gradient_covariance": (covariance.gradient_covariance, G),
    "off_diagonal_energy": (covariance.off_diagonal_energy, COV),
    "correlation": (covariance.correlation, COV),
    "mean_correlation": (covariance.mean_correlation, COV),
    "generic_correlation": (covariance.generic_correlation, HALF),
    "measures": (covariance.measures, COV),
    "samples_to_see": (covariance.samples_to_see, randn(2, 50, seed=5)),
    "samples_by_rank": (covariance.samples_by_rank, HALF, HALF, HALF),
}
test_same_values_on_every_device, test_nothing_is_made_without_a_device = same_everywhere(CALLS, rtol=1e-7, atol=1e-10)


def teacher():
    task = TeacherTask(compute.generator(0))
    x, y = task.sample(20, compute.generator(1))
    return x, y, task.probabilities(x), task.bayes_risk(x), task.losses(task.teacher, x), task.risk(task.teacher, x)


def insertion():
    task = TeacherTask(compute.generator(0))
    old = study.students(task, 40, 3, range(2), width=6, dtype=torch.float64)
    done = study.insertion(task, old, range(2), hidden=3, further=3, population=task.sample_inputs(50, generators()[0]))
    return old.model(old.x), done.risk, done.train, done.bars, done.change("insert"), done.against_control


MADE = {
    "TeacherTask": teacher,
    "students and insertion": insertion,
    "sample_each": lambda: TeacherTask(compute.generator(0)).sample_each(5, generators(n=2)),
    "digits_sample": lambda: tuple(digits_sample(10, compute.generator(0))),
    "PostNormResNet": lambda: tuple(PostNormResNet(5, 4, 1, 3, 2).params.values()),
    "ConvPostNormResNet": lambda: tuple(ConvPostNormResNet(1, 4, 1, 3, 2).params.values()),
    "lipschitz_bound": lambda: normalization.lipschitz_bound(1e-4),
}
test_a_seed_means_the_same_on_every_device, test_what_is_made_has_a_device = made_everywhere(
    MADE, rtol=1e-9, atol=1e-12
)


REFUSING = {
    "require_norm",
    "require_eps",
    "require_activation",
    "require_loss",
    "require_dtype",
    "require_generators",
    "require_pair",
    "require_several",
    "streams",
    "classes_of",
}  # no tensors in their results


@pytest.mark.parametrize(
    "room", [normalization, network, jumpboard, starts, covariance, task_room, study], ids=lambda r: r.__name__
)
def test_every_public_function_is_called_above(room):
    own = inspect.getmembers(room, lambda it: inspect.isfunction(it) and it.__module__ == room.__name__)
    inside = inspect.getsource(everything) + inspect.getsource(insertions) + inspect.getsource(found)
    inside += inspect.getsource(insertion) + inspect.getsource(observed)
    called = {name for name, _ in own if f".{name}(" in inside or f" {name}(" in inside} | REFUSING
    assert {name for name, _ in own if not name.startswith("_")} <= called | set(CALLS) | set(MADE)
