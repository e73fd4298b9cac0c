"""What every function of a kind refuses: each bad argument of the kind, tried on all functions that take one."""

import math
from dataclasses import replace

import pytest
import torch

from labkit import compute
from labkit.depth import jumpboard, network, starts, study
from labkit.depth.network import ConvPostNormResNet, PostNormResNet, insert_block
from labkit.depth.task import TeacherTask
from tests.depth.conftest import generators, randn

F64 = torch.float64
N, NETS, CLASSES = 12, 3, 3
MODELS = {
    "vectors": PostNormResNet(5, 6, 2, 4, CLASSES, generators=generators()),
    "images": ConvPostNormResNet(2, 4, 2, 3, CLASSES, generators=generators()),
}
SAMPLES = {"vectors": randn(N, 5), "images": randn(N, 2, 4, 4)}
Y = torch.arange(N) % CLASSES
kinds = pytest.mark.parametrize("kind", MODELS)


def takers(kind):
    """Every function that takes a sample, as a function of it."""
    model, good = MODELS[kind], SAMPLES[kind]
    w1 = jumpboard.draw_features(model, 2)
    along, line = jumpboard.direction(model, 1, good, Y, w1), starts.steepest(model, 1, good, Y, 2)
    t = torch.tensor([0.1], dtype=F64)
    new = insert_block(model, 1, 2)
    return {
        "mean_loss": lambda x, y: jumpboard.mean_loss(model, x, y),
        "activation_gradient": lambda x, y: jumpboard.activation_gradient(model, 1, x, y),
        "observe": lambda x, y: jumpboard.observe(model, 1, x, y, w1),
        "direction": lambda x, y: jumpboard.direction(model, 1, x, y, w1),
        "slope": lambda x, y: jumpboard.slope(model, along, x, y),
        "scores": lambda x, y: jumpboard.scores(model, along, x, y),
        "evaluate": lambda x, y: jumpboard.evaluate(model, along, x, y),
        "gain_curve": lambda x, y: jumpboard.gain_curve(model, along, x, y, t),
        "line_curvature": lambda x, y: jumpboard.line_curvature(model, along, x, y, 0.1),
        "line_search": lambda x, y: jumpboard.line_search(model, along, x, y),
        "jumpboard": lambda x, y: jumpboard.jumpboard(model, 1, x, y, w1),
        "fall_back": lambda x, y: jumpboard.fall_back(new, new, x, y),
        "parameter_step": lambda x, y: jumpboard.parameter_step(model, x, y),
        "margins, chosen": lambda x, y: jumpboard.margins(model, 1, (x, y), (good, Y), w1),
        "margins, judged": lambda x, y: jumpboard.margins(model, 1, (good, Y), (x, y), w1),
        "steepest": lambda x, y: starts.steepest(model, 1, x, y, 2),
        "slope_along": lambda x, y: starts.slope_along(line, x, y),
        "gain_along": lambda x, y: starts.gain_along(line, x, y, t),
        "journey of a line": lambda x, y: starts.journey(model, line, x, y, 0.1),
        "journey of a direction": lambda x, y: starts.journey(model, along, x, y, 0.1),
        "block_scores, chosen": lambda x, y: study.block_scores(model, 1, (x, y), (good, Y), (2,)),
        "block_scores, judged": lambda x, y: study.block_scores(model, 1, (good, Y), (x, y), (2,)),
    }


def with_nan(x):
    x = x.clone()
    x[1] = math.nan
    return x


BAD = {  # name -> (x, y from good ones, what the sentence says)
    "empty": (lambda x: x[:0], lambda y: y[:0], r"x must be \(n, .* not empty, got \(0, "),
    "NaN": (with_nan, lambda y: y, r"x\[1, .*\] = nan must be finite"),
    "infinity": (lambda x: x / 0.0, lambda y: y, r"x\[0, .*\] = -?inf must be finite"),
    "whole numbers": (lambda x: x.long(), lambda y: y, "x must be torch.float64 on cpu as the weights, got torch.int"),
    "float32": (lambda x: x.float(), lambda y: y, "x must be torch.float64 on cpu as the weights, got torch.float32"),
    "a list": (lambda x: x.tolist(), lambda y: y, "x must be a torch tensor, got list"),
    "a channel too many": (lambda x: torch.cat([x, x[:, :1]], 1), lambda y: y, r"x must be \(n, (5|2)"),
    "one sample": (lambda x: x[0], lambda y: y[0], "x must be|y must be"),
    "two of three nets": (lambda x: x.expand(2, *x.shape), lambda y: y, r"x must be \(n, .*\(3, n, .*got \(2, 12"),
    "fewer labels": (lambda x: x, lambda y: y[1:], r"y must be int64 of shape \(12,\) or \(3, 12\), got .* \(11,\)"),
    "labels that are no classes": (lambda x: x, lambda y: y + 1, r"y\[2\] = 3 must be a class from 0 to 2"),
    "negative labels": (lambda x: x, lambda y: y - 1, r"y\[0\] = -1 must be a class from 0 to 2"),
    "labels in float": (lambda x: x, lambda y: y.double(), "y must be int64 of shape .*, got torch.float64"),
    "a list of labels": (lambda x: x, lambda y: y.tolist(), "y must be int64 of shape .*, got list"),
}  # fmt: skip


@kinds
@pytest.mark.parametrize("bad", BAD)
def test_no_function_takes_a_sample_that_is_none(kind, bad):
    spoil_x, spoil_y, sentence = BAD[bad]
    for name, function in takers(kind).items():
        with pytest.raises((ValueError, TypeError), match=sentence):
            function(spoil_x(SAMPLES[kind]), spoil_y(Y))
            pytest.fail(f"{name} took it")
    if "y must" in sentence or "class" in sentence:
        return
    model, task = MODELS[kind], TeacherTask(compute.generator(0), dim=4, n_classes=CLASSES)
    p = torch.full((N, CLASSES), 1 / CLASSES, dtype=F64)
    others = [model.least_rms, lambda x: jumpboard.predictable_energy(model, 1, x, p)]
    for function in others + [lambda x: task.risk(model, x)] * (kind == "vectors"):
        with pytest.raises((ValueError, TypeError), match=sentence):
            function(spoil_x(SAMPLES[kind]))


@kinds
def test_the_same_samples_unspoiled_are_taken(kind):
    for shared in (True, False):
        x, y = (v if shared else v.expand(NETS, *v.shape) for v in (SAMPLES[kind], Y))
        for name, function in takers(kind).items():
            if shared or not name.startswith("journey"):
                function(x, y)


@kinds
@pytest.mark.parametrize("name", ["start", "t_max", "old start", "t", "line t"])
def test_a_step_is_a_number_or_one_a_net(kind, name):
    model, x = MODELS[kind], SAMPLES[kind]
    along, line = jumpboard.direction(model, 1, x, Y, 2), starts.steepest(model, 1, x, Y, 2)
    takes = {
        "start": lambda v: jumpboard.line_search(model, along, x, Y, v).t,
        "t_max": lambda v: jumpboard.line_curvature(model, along, x, Y, v),
        "old start": lambda v: jumpboard.parameter_step(model, x, Y, v)[1].gain,
        "t": lambda v: jumpboard.insert_direction(model, along, v)(x),
        "line t": lambda v: line.at(v)(x),
    }[name]
    torch.testing.assert_close(takes(0.5), takes(torch.full((NETS,), 0.5, dtype=F64)))
    torch.testing.assert_close(takes(torch.full((NETS,), 0.5)), takes(0.5))  # float32 does not lower the precision
    own = name.split()[-1]
    for shape in ((1,), (2,), (NETS, 1), (1, NETS), (0,)):
        with pytest.raises(ValueError, match=rf"{own} must be a number or \(3,\), one a net, got \("):
            takes(torch.ones(shape, dtype=F64))
    bad = (math.nan, math.inf) + (() if own == "t" else (0.0, -1.0))
    for value in bad:
        with pytest.raises(ValueError, match=f"{own} must be (positive and )?finite, got {value}"):
            takes(value)
        with pytest.raises(ValueError, match=rf"{own}\[1\] = {value} must be"):
            takes(torch.tensor([1.0, value, 1.0], dtype=F64))
    with pytest.raises(TypeError, match=f"{own} must be a number or a torch tensor, got str"):
        takes("0.5")


MOMENTS = jumpboard.moments(randn(NETS, 40, 4), randn(NETS, 40, 5, seed=1))
OF_MOMENTS = {
    "explained_energy": jumpboard.explained_energy,
    "energy_by_width, chosen": lambda found: jumpboard.energy_by_width(found, MOMENTS),
    "energy_by_width, judged": lambda found: jumpboard.energy_by_width(MOMENTS, found),
    "direction_from": lambda found: jumpboard.direction_from(found, 1, randn(NETS, 5, 4)),
}


@pytest.mark.parametrize("name", OF_MOMENTS)
def test_moments_fit_each_other(name):
    function = OF_MOMENTS[name]
    function(MOMENTS)
    for part, value in (
        ("cross", MOMENTS.cross[:2]),
        ("cross", MOMENTS.cross[..., 1:]),
        ("cross", MOMENTS.cross[0]),
        ("second", MOMENTS.second[:, 1:]),
        ("energy", MOMENTS.energy[:1]),
        ("energy", MOMENTS.energy[:, None]),
        ("cross", MOMENTS.cross[:0]),
    ):
        with pytest.raises(ValueError, match=r"must be \(net, d, m\), \(net, m, m\) and \(net,\), not empty, got"):
            function(MOMENTS._replace(**{part: value}))
    for part, value in MOMENTS._asdict().items():
        with pytest.raises(ValueError, match=rf"(moments|chosen|judged)\.{part}\[0.*\] = nan must be finite"):
            function(MOMENTS._replace(**{part: value * math.nan}))
    with pytest.raises(TypeError, match="must be Moments, as .* gives them, got Tensor"):
        function(MOMENTS.cross)


def test_moments_of_two_samples_belong_together():
    other = jumpboard.moments(randn(NETS, 40, 4), randn(NETS, 40, 6))
    with pytest.raises(ValueError, match="chosen and judged must be of the same nets and features"):
        jumpboard.energy_by_width(MOMENTS, other)
    for ridge, sentence in (
        (-1.0, "ridge must lie"),
        (math.nan, "ridge must lie"),
        (torch.ones(2), "must be a number"),
    ):
        with pytest.raises(ValueError, match=sentence):
            jumpboard.explained_energy(MOMENTS, ridge)
    for w1 in (randn(NETS, 5, 3), randn(2, 5, 4), randn(5, 4)):
        with pytest.raises(ValueError, match=r"w1 must be \(3, hidden, 4\)"):
            jumpboard.direction_from(MOMENTS, 1, w1)


@pytest.mark.parametrize("function", [jumpboard.moments, jumpboard.debiased_signal])
def test_a_pair_is_of_the_same_samples_and_finite(function):
    g, phi = randn(2, 6, 3), randn(2, 6, 4)
    for bad, name in ((with_nan(g), "g"), (g / 0, "g")):
        with pytest.raises(ValueError, match=rf"{name}\[.*\] = (nan|-?inf) must be finite"):
            function(bad, phi)
    with pytest.raises(ValueError, match=r"phi\[1, 0, 0\] = nan must be finite"):
        function(g, with_nan(phi))
    for bad in (g[:, :0], g[:0], g[0]):
        with pytest.raises(ValueError, match=r"g must be \(net, n, ..., channels\) and not empty"):
            function(bad, phi)
    with pytest.raises(TypeError, match="g must be a floating tensor, got dtype torch.int64"):
        function(g.long(), phi)
    assert function(g.float(), phi)[0].dtype == F64  # the wider of the two


LOGITS, LABELS = randn(2, 8, 3), torch.arange(8) % 3


@pytest.mark.parametrize("place", [0, 2])
def test_temperature_gain_takes_logits_and_classes_only(place):
    def gain(logits, y):
        given = [LOGITS, LABELS, LOGITS, LABELS]
        given[place : place + 2] = logits, y
        return jumpboard.temperature_gain(*given)

    name = "logits_test" if place else "logits"
    for logits, y, sentence in (
        (LOGITS, LABELS + 1, r"y\[2\] = 3 must be a class from 0 to 2"),
        (LOGITS, LABELS - 1, r"y\[0\] = -1 must be a class"),
        (LOGITS, LABELS[1:], "y must be int64 of shape"),
        (LOGITS, LABELS.double(), "y must be int64 of shape"),
        (
            LOGITS[:, :0],
            LABELS[:0],
            r"logits must be floats \(net, n, class\), not empty, got torch.float64 \(2, 0, 3\)",
        ),
        (LOGITS[0], LABELS, r"logits must be floats \(net, n, class\)"),
        (LOGITS[:1], LABELS, "logits and logits_test must be of the same nets and classes"),
        (LOGITS[..., :2], LABELS % 2, "logits and logits_test must be of the same nets and classes"),
        (LOGITS * math.nan, LABELS, rf"{name}\[0, 0, 0\] = nan must be finite"),
        (LOGITS.long(), LABELS, f"{name} must be a floating tensor"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            gain(logits, y)


UNLIKE = {
    "in_dim": {"in_dim": 6},
    "width": {"width": 7},
    "n_classes": {"n_classes": 4},
    "eps": {"eps": 0.1},
    "norm": {"norm": "layer"},
    "n_nets": {"generators": generators(n=2)},
    "blocks": {"activation": "tanh"},
}


@pytest.mark.parametrize("what", UNLIKE)
def test_only_like_nets_fall_back(what):
    given = {"in_dim": 5, "width": 6, "depth": 2, "hidden": 4, "n_classes": CLASSES, "generators": generators()}
    board, other = PostNormResNet(**given), PostNormResNet(**given | UNLIKE[what])
    for pair in ((board, other), (other, board)):
        with pytest.raises(ValueError, match=f"trained and board must have the same {what}"):
            jumpboard.fall_back(*pair, SAMPLES["vectors"], Y)


def test_a_diverged_net_falls_back_on_its_board_and_a_diverged_board_is_refused():
    model, x = MODELS["vectors"], SAMPLES["vectors"]
    out = model.params["out"].clone()
    out[1] = math.nan
    lost = replace(model, params=model.params | {"out": out})
    chosen = jumpboard.fall_back(lost, model, x, Y)
    assert chosen.fell_back.tolist() == [False, True, False] and (chosen.erm_gain == 0).all()
    torch.testing.assert_close(chosen.model(x), model(x))
    with pytest.raises(ValueError, match=r"training loss of board\[1\] = nan must be finite"):
        jumpboard.fall_back(model, lost, x, Y)


@kinds
def test_probabilities_fit_the_sample(kind):
    model, x = MODELS[kind], SAMPLES[kind]
    p = torch.softmax(randn(N, CLASSES), 1)
    assert (jumpboard.predictable_energy(model, 1, x, p) > 0).all()
    for bad, sentence in (
        (p[:, :2], r"probabilities must be \(12, 3\), as \(n, class\), got \(12, 2\)"),
        (p[1:], r"probabilities must be \(12, 3\)"),
        (2 * p / 3, r"sum of probabilities\[0\] = 0.66.* must be 1"),
        (-p, r"probabilities\[0, 0\] = -.* must lie in \[0, 1\]"),
        (p * math.nan, r"probabilities\[0, 0\] = nan must lie in \[0, 1\]"),
        (p.float(), "probabilities must be torch.float64"),
        (p.tolist(), "probabilities must be a torch tensor, got list"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            jumpboard.predictable_energy(model, 1, x, bad)


def test_quadratic_bound_broadcasts_numbers():
    values = {"gain": 2.0, "curvature": 1.0, "t": 3.0}
    assert jumpboard.quadratic_bound(**values) == 1.5
    for one in values:
        for bad in (math.nan, math.inf):
            with pytest.raises(ValueError, match=f"{one} must be finite, got {bad}"):
                jumpboard.quadratic_bound(**values | {one: bad})
        for other in values.keys() - {one}:
            with pytest.raises(ValueError, match="these shapes do not broadcast: gain"):
                jumpboard.quadratic_bound(**values | {one: torch.ones(2), other: torch.ones(3)})


def test_the_task_takes_its_own_inputs_only():
    task, generator = TeacherTask(compute.generator(0)), compute.generator(1)
    x = task.sample_inputs(7, generator)
    student = PostNormResNet(9, 6, 1, 4, 4)
    for function in (task.probabilities, task.bayes_risk):
        for bad in (x[:, :8], x[:0], x[0, 0], torch.cat([x, x], 1)):
            with pytest.raises(ValueError, match=r"x must be \(\.\.\., 9\) and not empty, got \("):
                function(bad)
        with pytest.raises(ValueError, match=r"x\[1, 0\] = nan must be finite"):
            function(with_nan(x))
        with pytest.raises(TypeError, match="x must be a floating tensor, got dtype torch.int64"):
            function(x.long())
    for function in (task.risk, task.losses):
        with pytest.raises(ValueError, match=r"x must be \(n, 9\), the same for all nets, got \(1, 7, 9\)"):
            function(student, x[None])
        with pytest.raises(ValueError, match="model must have the 4 classes of the task, got 3"):
            function(PostNormResNet(9, 6, 1, 4, 3), x)
    makers = (task.sample_inputs, task.sample, lambda n, g, dtype: task.sample_each(n, [g], dtype))
    for dtype in (torch.int64, torch.bool, "float64"):
        for make in makers:
            with pytest.raises(TypeError, match=f"dtype must be a floating torch.dtype, .*got {dtype}"):
                make(5, generator, dtype)
        for make in (
            lambda dtype: PostNormResNet(3, 4, 1, 4, 2, dtype=dtype),
            lambda dtype: student.to(dtype=dtype),
        ):
            with pytest.raises(TypeError, match="dtype must be a floating torch.dtype"):
                make(dtype)
    for bad in ("warm", torch.ones(2), math.nan):
        with pytest.raises((TypeError, ValueError), match="temperature(.0.)? (must|=)"):
            TeacherTask(compute.generator(0), temperature=bad)


def test_generators_are_a_list_one_a_net():
    model, task = MODELS["vectors"], TeacherTask(compute.generator(0))
    takes = {
        "insert_block": lambda g: insert_block(model, 1, 2, generators=g),
        "draw_features": lambda g: jumpboard.draw_features(model, 2, g),
        "PostNormResNet": lambda g: PostNormResNet(3, 4, 1, 4, 2, generators=g),
        "sample_each": lambda g: task.sample_each(4, g),
    }
    for function in takes.values():
        for bad, sentence in (
            (compute.generator(0), "generators must be a list of torch.Generator, one a net"),
            ([], "generators must be (3|at least 1), one a net, got 0"),
            ([0, 1, 2], "generator must be a torch.Generator, got 0"),
        ):
            with pytest.raises((ValueError, TypeError), match=sentence):
                function(bad)


@kinds
def test_layers_have_the_shape_of_the_net(kind):
    model = MODELS[kind]
    z = model.bottom(SAMPLES[kind], 1)
    w1 = jumpboard.draw_features(model, 2)
    for function in (
        lambda z: model.top(z, 1),
        lambda z: model.residual(z, 1),
        lambda z: jumpboard.features(model, z, w1),
    ):
        function(z)
        for bad in (z[0], z[:2], z[..., 1:]):
            with pytest.raises(ValueError, match=r"z must be \(3, n, "):
                function(bad)
        with pytest.raises(TypeError, match="z must be torch.float64"):
            function(z.float())
    with pytest.raises(TypeError, match="w1 must be torch.float64"):
        jumpboard.features(model, z, w1.float())


def test_features_that_are_all_zero_give_no_direction_and_no_error():
    """Their moments vanish; only ridge = 0 is refused."""
    model, x = MODELS["vectors"], SAMPLES["vectors"]
    dead = replace(model, params=model.params | {"in": 0 * model.params["in"]})
    assert (study.block_scores(dead, 0, (x, Y), (x, Y), (2,)) == 0).all()
    with pytest.raises(ValueError, match="it is not invertible, raise ridge or take fewer features"):
        study.block_scores(dead, 0, (x, Y), (x, Y), (2,), ridge=0.0)


def test_studies_say_what_does_not_fit():
    task, seeds = TeacherTask(compute.generator(0)), range(2)
    old = study.students(task, 20, 2, seeds, width=4)
    model, x = MODELS["vectors"], SAMPLES["vectors"]
    line = starts.steepest(model, 1, x, Y, 2)
    for call, sentence in (
        (lambda: study.students(task, 20, 2, []), "generators must be at least 1, one a net, got 0"),
        (lambda: study.students(task, 20, 2, [0.5]), r"seeds\[0\] must be a whole number, got 0.5"),
        (lambda: study.insertion(task, old, range(3)), "seeds must be those of old, 2, one a net, got 3"),
        (lambda: study.block_scores(model, 1, (x, Y), (x, Y), ()), "blocks must hold at least one number, got none"),
        (lambda: study.block_scores(model, 1, (x, Y), (x, Y), 2), "blocks must be several whole numbers, .*, got 2"),
        (lambda: study.block_scores(model, 1, x, (x, Y), (2,)), r"chosen must be a pair \(x, y\), got Tensor"),
        (lambda: jumpboard.margins(model, 1, (x, Y), (x,)), r"judged must be a pair \(x, y\), got tuple"),
        (lambda: jumpboard.slope(model, line, x, Y), "direction must be a Direction, .* got Line"),
        (lambda: starts.slope_along(model, x, Y), "line must be a Line, .* got PostNormResNet"),
        (lambda: network.require_activation(["relu"]), "activation must be one of relu, .*got .'relu'."),
        (lambda: study.block_scores(model, 1, (x, Y), (x, Y), (2,), -1.0), r"ridge must lie in \[0, inf\), got -1"),
        (lambda: study.mean_scores(torch.ones(3, 0), 1), r"scores must be \(\.\.\., sample\) and not empty"),
        (lambda: study.mean_scores(torch.tensor([1.0, math.nan]), 1), r"scores\[1\] = nan must be finite"),
        (lambda: study.mean_scores(torch.tensor([1.0, -1.0]), 1), r"\|mean of scores\|.* must be > 0"),
        (lambda: starts.journey(model, line, x, Y, torch.ones(3)), r"reach must be a number, got shape \(3,\)"),
        (lambda: network.sample_losses(torch.zeros(2, 3), Y), r"logits must be floats \(net, n, class\)"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=sentence):
            call()
