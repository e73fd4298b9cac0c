"""Many nets as one against loops over single nets with torch.nn and torch.optim; what a net does is its own affair."""

import inspect
import math

import pytest
import torch
from torch import nn

from labkit import compute, training
from labkit.training import SGD, Adam, accuracy, conv2d, cross_entropy, he, linear, mse, normal, to_nets, train, xavier
from tests.stand_in import forgotten_device

F64 = {"device": "cpu", "dtype": torch.float64}
N_NETS, N, STEPS = 3, 12, 25
RATES = torch.tensor([0.05, 0.2, 0.01], dtype=torch.float64)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=compute.generator(seed))


def generators(first=0):
    return training.generators(range(first, first + N_NETS))


class Dense:
    """4 inputs, 6 hidden ReLU units, 2 outputs, with biases: stacked, and as a module of net i."""

    x, y, loss, single_loss = randn(N, 4, seed=1), randn(N, 2, seed=2), staticmethod(mse), nn.MSELoss()

    @staticmethod
    def params():
        g = generators()
        return {
            "w0": he((6, 4), g, **F64),
            "b0": normal((6,), g, 0.1, **F64),
            "w1": xavier((2, 6), g, **F64),
            "b1": normal((2,), g, 0.1, **F64),
        }

    @staticmethod
    def forward(p, x):
        return linear(linear(x, p["w0"], p["b0"]).relu(), p["w1"], p["b1"])

    @staticmethod
    def module():
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()


class Images:
    """Two convolutions with stride and biases, an average pool and a readout, on 5 × 5 images of 2 channels."""

    x, y, loss, single_loss = randn(N, 2, 5, 5, seed=3), torch.arange(N) % 3, cross_entropy, nn.CrossEntropyLoss()

    @staticmethod
    def params():
        g = generators()
        return {
            "w0": he((4, 2, 3, 3), g, **F64),
            "b0": normal((4,), g, 0.1, **F64),
            "w1": he((5, 4, 3, 3), g, **F64),
            "b1": normal((5,), g, 0.1, **F64),
            "w2": normal((3, 5), g, **F64),
        }

    @staticmethod
    def forward(p, x):
        x = conv2d(x, p["w0"], p["b0"], padding=1).relu()
        x = conv2d(x, p["w1"], p["b1"], stride=2).relu()
        return linear(to_nets(x.mean((2, 3)), len(p["w2"])), p["w2"])

    @staticmethod
    def module():
        readout = nn.Linear(5, 3, bias=False)
        layers = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2), nn.ReLU()
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), readout).double()


def looped(problem, make_optimizer, batches, clip=None):
    """Parameters and losses of single nets trained one after the other with torch.optim."""
    stacked, histories, ends = problem.params(), [], []
    for net in range(N_NETS):
        model = problem.module()
        with torch.no_grad():
            for weight, values in zip(model.parameters(), stacked.values(), strict=True):
                weight.copy_(values[net])
        optimizer, history = make_optimizer(model.parameters(), RATES[net].item()), []
        for x, y in batches(net):
            optimizer.zero_grad()
            loss = problem.single_loss(model(x), y)
            history.append(loss.detach())
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip[net].item())
            optimizer.step()
        histories.append(torch.stack(history))
        ends.append([weight.detach() for weight in model.parameters()])
    return [torch.stack(values) for values in zip(*ends, strict=True)], torch.stack(histories, dim=1)


OPTIMIZERS = {
    "SGD": (SGD(RATES), lambda p, lr: torch.optim.SGD(p, lr)),
    "momentum": (SGD(RATES, momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "Adam": (Adam(RATES, (0.8, 0.95)), lambda p, lr: torch.optim.Adam(p, lr, betas=(0.8, 0.95))),
    "eps": (Adam(RATES, eps=0.3), lambda p, lr: torch.optim.Adam(p, lr, eps=0.3)),
    "AdamW": (Adam(RATES, weight_decay=0.3), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.3)),
}
problems = pytest.mark.parametrize("problem", [Dense, Images])


@pytest.mark.parametrize("name", OPTIMIZERS)
@problems
def test_each_net_moves_as_with_torch_optim(problem, name):
    ours, theirs = OPTIMIZERS[name]
    run = train(problem.forward, problem.params(), problem.x, problem.y, ours, STEPS, loss=problem.loss, record_every=1)
    params, losses = looped(problem, theirs, lambda net: [(problem.x, problem.y)] * STEPS)
    torch.testing.assert_close(list(run.params.values()), params, rtol=0, atol=1e-10)
    torch.testing.assert_close(run.loss[:-1], losses, rtol=0, atol=1e-10)
    assert run.recorded.tolist() == list(range(STEPS + 1)) and run.steps.tolist() == [STEPS] * N_NETS


def test_many_nets_for_long(monkeypatch):
    """32 nets and 200 steps: rounding does not pile up."""
    monkeypatch.setitem(globals(), "N_NETS", 32)
    monkeypatch.setitem(globals(), "RATES", torch.linspace(1e-3, 0.02, 32, dtype=torch.float64))
    run = train(Dense.forward, Dense.params(), Dense.x, Dense.y, SGD(RATES, momentum=0.9), 200, record_every=1)
    params, losses = looped(Dense, OPTIMIZERS["momentum"][1], lambda net: [(Dense.x, Dense.y)] * 200)
    torch.testing.assert_close(list(run.params.values()), params, rtol=0, atol=1e-6)
    torch.testing.assert_close(run.loss[:-1], losses, rtol=0, atol=1e-6)


@problems
def test_gradients_are_clipped_as_by_torch(problem):
    clip = torch.tensor([0.1, 1e6, 0.5], dtype=torch.float64)
    run = train(
        problem.forward, problem.params(), problem.x, problem.y, SGD(RATES), STEPS, loss=problem.loss, clip=clip
    )
    params, _ = looped(problem, OPTIMIZERS["SGD"][1], lambda net: [(problem.x, problem.y)] * STEPS, clip)
    torch.testing.assert_close(list(run.params.values()), params, rtol=0, atol=1e-10)


def orders(generator):
    """Mini-batches of 5 of 12 samples, two an epoch, as `train` is documented to draw them."""
    while True:
        order = torch.randperm(N, generator=generator)
        yield order[:5]
        yield order[5:10]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("per_net", [True, False])
@problems
def test_mini_batches(problem, per_net, shared):
    """Each combination of shared or own data and shared or own order against the loop."""
    stack = (lambda v: torch.stack([v.roll(net, 0) for net in range(N_NETS)])) if per_net else lambda v: v

    def batches(net):
        generator = compute.generator(7 if shared else 7 + net)
        x, y = (stack(v)[net] if per_net else v for v in (problem.x, problem.y))
        return [(x[index], y[index]) for index, _ in zip(orders(generator), range(STEPS), strict=False)]

    who = compute.generator(7) if shared else generators(7)
    data, options = (stack(problem.x), stack(problem.y)), {"batch": 5, "generators": who, "per_net": per_net}
    run = train(problem.forward, problem.params(), *data, SGD(RATES), STEPS, loss=problem.loss, **options)
    params, _ = looped(problem, OPTIMIZERS["SGD"][1], batches)
    torch.testing.assert_close(list(run.params.values()), params, rtol=0, atol=1e-10)


def test_a_net_alone_is_the_same_net():
    """Own seed for weights and batches: net 2 of three is what it would be alone."""
    options = {"batch": 5, "steps": STEPS}
    together = train(Dense.forward, Dense.params(), Dense.x, Dense.y, SGD(0.1), generators=generators(7), **options)
    params = {name: value[2:] for name, value in Dense.params().items()}
    alone = train(Dense.forward, params, Dense.x, Dense.y, SGD(0.1), generators=[compute.generator(9)], **options)
    for name, value in alone.params.items():
        torch.testing.assert_close(value[0], together.params[name][2], rtol=0, atol=1e-12)


def simple(**options):
    """f(x) = w x on one sample (1, 1), loss (w − 1)², three nets from w = 3: the error is 2(1 − 2 lr)ᵗ."""
    one, start = torch.ones(1, 1, dtype=torch.float64), {"w": torch.full((3, 1, 1), 3.0, dtype=torch.float64)}
    options = {"optimizer": SGD(torch.tensor([0.1, 0.25, 0.05])), "steps": 40} | options
    return train(lambda p, x: linear(x, p["w"]), start, one, one, **options)


def error(rate, steps):
    return 2 * (1 - 2 * rate) ** steps


@pytest.mark.parametrize("optimizer", [SGD, lambda lr: SGD(lr, momentum=0.5), lambda lr: Adam(lr, weight_decay=0.1)])
def test_a_stopped_net_is_frozen_exactly(optimizer):
    rates, limit = torch.tensor([0.1, 0.25, 0.001]), torch.tensor([0.3, 0.05, 0.1])
    run = simple(optimizer=optimizer(rates), stop_loss=limit)
    assert run.stopped.tolist() == [True, True, False] and run.steps[2] == 40
    for net in range(3):
        cut = simple(optimizer=optimizer(rates), steps=int(run.steps[net]), record_every=1)
        assert torch.equal(cut.params["w"][net], run.params["w"][net])
        assert (cut.loss[:-1, net] > limit[net]).all()
        assert (cut.loss[-1, net] <= limit[net]) == run.stopped[net]


def test_stop_steps_are_those_of_the_closed_form():
    run = simple(stop_loss=1e-2)
    assert run.steps.tolist() == [math.ceil(math.log(0.05) / math.log(1 - 2 * rate)) for rate in (0.1, 0.25, 0.05)]
    assert str(run) == "3 nets, 5 to 29 steps, 3 reached the stop loss"


def test_training_ends_when_no_net_moves():
    run = simple(stop_loss=1e-2, steps=10**9)
    assert run.steps.max() == 29 and run.recorded.tolist() == [0, 30]


def test_a_net_that_starts_below_the_stop_loss_does_not_move():
    assert simple(stop_loss=4.0).steps.tolist() == [0, 0, 0]


def test_running_loss_of_mini_batches():
    """Labels 0 and 1 of two samples, w frozen by a tiny rate: the running mean of 0, 1 losses at rate 1/2."""
    x, y = torch.ones(2, 1, dtype=torch.float64), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    w = {"w": torch.zeros(1, 1, 1, dtype=torch.float64)}
    options = {"batch": 1, "generators": compute.generator(3), "record_every": 1}
    run = train(lambda p, x: linear(x, p["w"]), w, x, y, SGD(1e-12), steps=8, **options)
    again, seen = compute.generator(3), []
    while len(seen) < 9:
        seen += torch.randperm(2, generator=again).tolist()
    expected = [float(seen[0])]
    for label in seen[1:9]:
        expected.append((expected[-1] + label) / 2)
    torch.testing.assert_close(run.loss[:, 0], torch.tensor(expected).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_net_stops_before_it_has_seen_an_epoch(seed):
    """y = 5x from w = 0: the sample with x = 0 has no loss, the mean over the others is 25 at first."""
    x = torch.tensor([[0.0], [1], [1], [1]], dtype=torch.float64)
    w = {"w": torch.zeros(1, 1, 1, dtype=torch.float64)}
    options = {"batch": 1, "generators": compute.generator(seed), "stop_loss": 1e-3, "record_every": 1}
    run = train(lambda p, x: linear(x, p["w"]), w, x, 5 * x, SGD(0.1), steps=400, **options)
    assert run.stopped.all() and run.loss[-1] <= 1e-3 and abs(run.params["w"].item() - 5) < 0.1


def test_the_running_loss_begins_with_the_mean_over_an_epoch():
    x, y = torch.ones(6, 1, dtype=torch.float64), torch.arange(6.0, dtype=torch.float64)[:, None]
    w = {"w": torch.zeros(1, 1, 1, dtype=torch.float64)}
    options = {"batch": 2, "generators": compute.generator(3), "record_every": 1}
    run = train(lambda p, x: linear(x, p["w"]), w, x, y, SGD(1e-12), steps=8, **options)
    torch.testing.assert_close(run.loss[2, 0], (y**2).mean(), rtol=0, atol=1e-9)
    again, now = compute.generator(3), []
    for _ in range(3):
        now += [(y[part] ** 2).mean() for part in torch.randperm(6, generator=again).split(2)]
    for step in range(3, 9):  # then an exponential mean of rate batch/n
        torch.testing.assert_close(run.loss[step, 0], run.loss[step - 1, 0] * 2 / 3 + now[step] / 3, rtol=0, atol=1e-9)


def test_mini_batches_stop_by_the_running_loss_and_diverge_by_their_own():
    """Losses 0 and 4 in turn, on average 2: no net stops at 1 although half of the batches are below it."""
    x, y = torch.ones(2, 1, dtype=torch.float64), torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    w = {"w": torch.zeros(3, 1, 1, dtype=torch.float64)}
    options = {"batch": 1, "generators": compute.generator(0)}
    run = train(lambda p, x: linear(x, p["w"]), w, x, y, SGD(1e-12), 40, stop_loss=0.05, max_loss=5.0, **options)
    assert not run.diverged.any() and run.steps.tolist() == [40] * 3
    run = train(lambda p, x: linear(x, p["w"]), w, x, y, SGD(1e-12), 40, max_loss=3.0, **options)
    assert run.diverged.all() and run.steps.max() < 2


@problems
@pytest.mark.parametrize("make", [SGD, lambda lr: SGD(lr, momentum=0.9), Adam])
def test_a_net_that_diverges_is_reported_and_leaves_the_others_alone(problem, make):
    wild = torch.tensor([0.01, 1e200, 0.01], dtype=torch.float64)
    run = train(problem.forward, problem.params(), problem.x, problem.y, make(wild), STEPS, loss=problem.loss)
    calm = train(problem.forward, problem.params(), problem.x, problem.y, make(0.01), STEPS, loss=problem.loss)
    assert run.diverged.tolist() == [False, True, False] and not calm.diverged.any()
    assert run.steps[1] < 5 and f"net 1 diverged at step {run.steps[1]}" in str(run)
    assert not run.loss[-1, 1].isfinite()  # in an average it cannot be overlooked
    for name in calm.params:
        for got in (run.params[name], run.best[name]):
            assert torch.equal(got[[0, 2]], calm.params[name][[0, 2]])
        assert torch.equal(run.best[name][1], problem.params()[name][1])  # the last good one that was recorded


def test_a_loss_above_the_bound_is_divergence():
    run = simple(optimizer=SGD(torch.tensor([0.1, 1.5, 0.05])), max_loss=100.0)  # net 1: |error| = 2^(t + 1)
    assert run.diverged.tolist() == [False, True, False]
    assert run.steps.tolist() == [40, 3, 40] and run.loss[-1, 1] == 4.0**4


def test_the_bound_may_differ_from_net_to_net():
    run = simple(optimizer=SGD(1.5), max_loss=torch.tensor([5.0, 100.0, math.inf]))
    assert run.diverged.tolist() == [True, True, False] and run.steps.tolist() == [1, 3, 40]


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("wrong", [0, 7, 39])
def test_a_learning_rate_that_turns_bad_is_refused(rate, wrong):
    with pytest.raises(ValueError, match="lr\\(step, params\\) must be finite and >= 0, which it was not before step"):
        simple(optimizer=SGD(lambda step, params: rate if step == wrong else 0.1))


def test_a_schedule_may_begin_and_end_at_zero():
    run = simple(optimizer=SGD(lambda step, params: 0.1 * (0 < step < 39)), record_every=1)
    assert torch.equal(run.loss[0], run.loss[1]) and torch.equal(run.loss[-1], run.loss[-2])


def test_a_net_that_diverged_keeps_its_last_parameters_whatever_its_gradient():
    """√(w²) at w = 0 has no gradient; the loss 1 there is above the bound, so net 0 is frozen at once."""
    one, w = torch.ones(1, 1, dtype=torch.float64), torch.tensor([0.0, 0.5], dtype=torch.float64)[:, None, None]
    run = train(lambda p, x: linear(x, (p["w"] ** 2).sqrt()), {"w": w}, one, one, SGD(0.1), 5, max_loss=0.9)
    assert run.params["w"][0].item() == 0 and run.diverged.tolist() == [True, False] and run.steps.tolist() == [0, 5]


def test_a_diverged_state_is_never_the_best():
    """Validated by how large w is, which is best when it has run away."""
    options = {"max_loss": 100.0, "validate": lambda p: -p["w"].abs().flatten(), "record_every": 1}
    run = simple(optimizer=SGD(torch.tensor([0.1, 1.5, 0.05])), **options)  # net 1: |error| = 2^(t + 1)
    assert run.best["w"].flatten().tolist() == [3, 9, 3] and run.steps[1] == 3  # w = 3, -3, 9, then -15 diverged


def test_nan_gradient_of_a_finite_loss():
    """√0 has slope inf, so w − inf·0 is NaN at the next step: diverged there, after one step."""
    one = torch.ones(1, 1, dtype=torch.float64)
    w = torch.tensor([0.0, 1.0], dtype=torch.float64)[:, None, None]
    run = train(lambda p, x: linear(x, (p["w"] ** 2).sqrt()), {"w": w}, one, one, SGD(0.1), 5)
    assert run.diverged.tolist() == [True, False] and run.steps.tolist() == [1, 5]


def test_best_is_the_recorded_state_of_least_loss():
    """Net 1 overshoots and oscillates away, |error| = 2·1.2ᵗ: its best is the start."""
    run = simple(optimizer=SGD(torch.tensor([0.1, 1.1, 0.05])), record_every=7)
    assert run.recorded.tolist() == [0, 7, 14, 21, 28, 35, 40]
    assert run.best["w"].flatten().tolist() == pytest.approx([1 + error(0.1, 40), 3, 1 + error(0.05, 40)])
    assert torch.equal(run.best_loss, run.loss.amin(0))


def test_best_by_validation():
    """Validated by the distance to 2: every net passes it on the way from 3 to 1."""
    rates = (0.1, 0.25, 0.05)
    run = simple(validate=lambda p: (p["w"] - 2).abs().flatten(), record_every=1)
    distance = [[abs(error(rate, t) - 1) for t in range(41)] for rate in rates]
    assert run.validation.T.tolist() == [pytest.approx(line) for line in distance]
    assert run.best_loss.tolist() == pytest.approx([min(line) for line in distance])
    for net, (rate, line) in enumerate(zip(rates, distance, strict=True)):
        assert run.best["w"][net].item() == pytest.approx(1 + error(rate, line.index(min(line))))


def test_learning_rate_that_follows_the_step_and_the_nets():
    seen = []

    def cosine(step, params):
        seen.append(params["w"].flatten().tolist())
        return torch.tensor([0.1, 0.2, 0.3]) * (1 + math.cos(math.pi * step / 4)) / 2

    run = simple(optimizer=SGD(cosine), steps=4)
    shares = [(1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    expected = [1 + 2 * math.prod(1 - 2 * rate * share for share in shares) for rate in (0.1, 0.2, 0.3)]
    assert run.params["w"].flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert len(seen) == 4 and seen[0] == [3, 3, 3]
    assert seen[1] == pytest.approx([1 + 2 * (1 - 2 * rate) for rate in (0.1, 0.2, 0.3)], rel=1e-6)  # as they are then


def test_the_given_parameters_stay_as_they_were():
    params = Dense.params()
    train(Dense.forward, params, Dense.x, Dense.y, Adam(0.1), 3)
    assert all(torch.equal(params[name], value) for name, value in Dense.params().items())


def test_parameters_without_further_axes_and_without_use():
    """A scale per net is (net,); what forward ignores keeps its value."""
    params = {"scale": torch.full((3,), 3.0, dtype=torch.float64), "idle": randn(3, 2)}
    one = torch.ones(1, 1, dtype=torch.float64)
    run = train(lambda p, x: p["scale"][:, None, None] * x, params, one, one, SGD(0.1), 5)
    assert run.params["scale"].tolist() == pytest.approx([1 + error(0.1, 5)] * 3)
    assert torch.equal(run.params["idle"], params["idle"])


def test_float32_and_autocast():
    data, params = (Dense.x.float(), Dense.y.float()), {k: v.float() for k, v in Dense.params().items()}
    exact = train(Dense.forward, Dense.params(), Dense.x, Dense.y, SGD(0.1), STEPS)
    single = train(Dense.forward, params, *data, SGD(0.1), STEPS)
    half = train(Dense.forward, params, *data, SGD(0.1), STEPS, autocast=torch.bfloat16)
    assert {v.dtype for v in (*single.params.values(), *half.params.values(), half.loss)} == {torch.float32}
    torch.testing.assert_close(single.loss[-1].double(), exact.loss[-1], rtol=1e-5, atol=0)
    torch.testing.assert_close(half.loss[-1], single.loss[-1], rtol=3e-2, atol=0)
    assert not torch.equal(half.loss[-1], single.loss[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_is_in_the_dtype_of_the_parameters(dtype):
    seen = set()

    def loss(out, y):
        seen.add(out.dtype)
        return mse(out, y)

    params = {name: value.to(dtype) for name, value in Dense.params().items()}
    data = Dense.x.to(dtype), Dense.y.to(dtype)
    train(Dense.forward, params, *data, SGD(0.1), 3, loss=loss, autocast=torch.bfloat16)
    assert seen == {dtype}


def test_works_where_gradients_are_switched_off():
    with torch.no_grad():
        assert simple().loss[-1].max() < 0.1


def test_progress_bar(capsys):
    simple()
    assert capsys.readouterr().err == ""
    simple(progress=True, stop_loss=1e-2)
    shown = capsys.readouterr().err
    assert "30/40" in shown and "0 of 3 nets" in shown


# --- Layers, initial weights, losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_linear_is_that_of_torch_per_net(own):
    weight, bias, x = randn(3, 5, 4), randn(3, 5, seed=1), randn(3, 7, 4, seed=2)
    shared = x if own else x[0]
    for b in (bias, None):
        expected = [nn.functional.linear(x[i if own else 0], weight[i], None if b is None else b[i]) for i in range(3)]
        torch.testing.assert_close(linear(shared, weight, b), torch.stack(expected))


@pytest.mark.parametrize("seen", ["shared", "own", "grouped"])
@pytest.mark.parametrize("stride, padding", [(1, 0), (2, 1)])
def test_conv2d_is_that_of_torch_per_net(seen, stride, padding):
    weight, bias, x = randn(3, 5, 2, 3, 3), randn(3, 5, seed=1), randn(3, 7, 2, 6, 6, seed=2)
    given = {"shared": x[0], "own": x, "grouped": x.transpose(0, 1).reshape(7, 6, 6, 6)}[seen]
    for b in (bias, None):
        single = [
            nn.functional.conv2d(
                x[0 if seen == "shared" else i], weight[i], None if b is None else b[i], stride, padding
            )
            for i in range(3)
        ]
        torch.testing.assert_close(to_nets(conv2d(given, weight, b, stride, padding), 3), torch.stack(single))


@pytest.mark.parametrize("shape", [(400, 30), (64, 8, 3, 3)])
@pytest.mark.parametrize("ours, theirs", [(he, nn.init.kaiming_normal_), (xavier, nn.init.xavier_normal_)])
def test_spread_of_initial_weights_is_that_of_torch(shape, ours, theirs):
    options = {"nonlinearity": "relu"} if ours is he else {}
    reference = theirs(torch.empty(20, *shape)[0], generator=compute.generator(1), **options)
    weights = ours(shape, training.generators(range(20)), **F64)
    assert weights.std().item() == pytest.approx(reference.std().item(), rel=0.05)
    fan_in, fan_out = math.prod(shape[1:]), math.prod(shape[2:]) * shape[0]
    variance = 2 / fan_in if ours is he else 2 / (fan_in + fan_out)
    assert weights.var().item() == pytest.approx(variance, rel=5 * (2 / weights.numel()) ** 0.5)
    assert abs(weights.mean().item()) < 5 * weights.std().item() / weights.numel() ** 0.5


def test_losses_are_those_of_torch_per_net():
    out, y, labels = randn(3, 7, 4), randn(3, 7, 4, seed=1), torch.arange(21).reshape(3, 7) % 4
    for i in range(3):
        assert mse(out, y)[i].item() == pytest.approx(nn.functional.mse_loss(out[i], y[i]).item())
        assert mse(out, y[0])[i].item() == pytest.approx(nn.functional.mse_loss(out[i], y[0]).item())
        expected = nn.functional.cross_entropy(out[i], labels[i]).item()
        assert cross_entropy(out, labels)[i].item() == pytest.approx(expected)
        assert cross_entropy(out, labels[0])[i] == cross_entropy(out, labels[0].expand(3, 7))[i]
        assert accuracy(out, labels)[i].item() == sum(out[i].argmax(1) == labels[i]) / 7


@pytest.mark.parametrize("problem", [Dense, Images])
def test_gradients_are_those_of_each_net_alone(problem):
    params = problem.params()
    before = {name: value.clone() for name, value in params.items()}
    with torch.no_grad():  # a caller may have switched them off
        loss, grad = training.gradients(problem.forward, params, problem.x, problem.y, problem.loss)
    assert all(torch.equal(value, before[name]) and not value.requires_grad for name, value in params.items())
    for i in range(len(loss)):
        alone = {name: value[i : i + 1].clone().requires_grad_() for name, value in params.items()}
        own = problem.loss(problem.forward(alone, problem.x), problem.y).sum()
        own.backward()
        assert loss[i].item() == pytest.approx(own.item())
        for name, value in alone.items():
            torch.testing.assert_close(grad[name][i], value.grad[0])


# --- Bad input ---------------------------------------------------------------------------------------------------


REFUSED = {
    r"params must hold at least one tensor": {"params": {}},
    r"params\['w0'\] must be a float32 or float64 tensor, got torch.float16": {"params": {"w0": torch.ones(3).half()}},
    r"params\['w0'\] must be a float32 or float64 tensor, got list": {"params": {"w0": [1.0]}},
    r"share a leading net axis and not be empty, got w0 \(3, 6, 4\), w1 \(2, 2, 6\)": {"w1": randn(2, 2, 6)},
    r"params must share one dtype and one device, got w0 torch.float64 on cpu, w1 torch.float32": {
        "w1": torch.ones(3, 2, 6)
    },
    r"params\['w1'\]\[0, 0, 0\] = nan must be finite": {"w1": randn(3, 2, 6) * math.nan},
    r"x must be a torch tensor, got list": {"x": [1.0]},
    r"x is on meta but params are on cpu": {"x": torch.ones(N, 4, device="meta")},
    r"x is torch.float32 but params are torch.float64: use one dtype": {"x": Dense.x.float()},
    r"x\[0, 0\] = nan must be finite": {"x": Dense.x * math.nan},
    r"x must be \(n, \.\.\.\) and not empty, got \(0, 4\)": {"x": Dense.x[:0]},
    r"x must be \(3, n, \.\.\.\) and not empty, got \(12, 4\)": {"per_net": True},
    r"equally many samples, got \(12, 4\) and \(11, 2\)": {"y": Dense.y[1:]},
    r"y must be \(12, 2\) or \(3, 12, 2\) as the output, got \(12, 1\)": {"y": Dense.y[:, :1]},
    r"x must be \(batch, 4\) or \(3, batch, 4\) for weight \(3, 6, 4\), got \(12, 5\)": {"x": randn(N, 5)},
    r"loss \(3,\), got \(3, 12, 2\) and \(\)": {"loss": lambda out, y: ((out - y) ** 2).mean()},
    r"validate must be a number or \(3,\), one per net, got \(2,\)": {"validate": lambda p: torch.ones(2)},
    r"steps must be >= 1, got 0": {"steps": 0},
    r"record_every must be >= 1, got 0": {"record_every": 0},
    r"max_loss must be > 0, got nan": {"max_loss": math.nan},
    r"lr must be a number or \(3,\), one per net, got \(2,\)": {"optimizer": SGD(torch.ones(2))},
    r"lr must be positive and finite, got -0.1": {"optimizer": Adam(-0.1)},
    r"stop_loss must be a number or \(3,\), one per net, got \(4,\)": {"stop_loss": torch.ones(4)},
    r"stop_loss must be finite, got nan": {"stop_loss": math.nan},
    r"clip\[1\] = 0.0 must be positive": {"clip": torch.tensor([1.0, 0.0, 1.0])},
    r"batch and generators belong together": {"batch": 5},
    r"batch must lie in \[1, 12\], the number of samples, got 13": {"batch": 13, "generators": compute.generator(0)},
    r"a list of 3, got a list of 1": {"batch": 5, "generators": [compute.generator(0)]},
    r"generators must be a torch.Generator or a list of them, got 0": {"batch": 5, "generators": 0},
    r"a torch.Generator or a list of them, got \[0, 1, 2\]": {"batch": 5, "generators": [0, 1, 2]},
    r"optimizer must be SGD\(...\) or Adam\(...\) of labkit.training, got <class": {"optimizer": torch.optim.SGD},
    r"optimizer must be SGD\(...\) or Adam\(...\) of labkit.training, got 0.1": {"optimizer": 0.1},
    r"params must be a dict of tensors \(net, ...\), got list": {"params": [Dense.x]},
    r"steps must be an integer, got 2.5": {"steps": 2.5},
    r"record_every must be an integer, got 2.5": {"record_every": 2.5},
    r"autocast must be torch.bfloat16 or None, got torch.float16": {"autocast": torch.float16},
    r"batch must be an integer, got 2.5": {"batch": 2.5, "generators": compute.generator(0)},
    r"max_loss\[1\] = 0.0 must be > 0": {"max_loss": torch.tensor([1.0, 0.0, 1.0])},
    r"lr must be a number or \(3,\), one per net, got 'a'": {"optimizer": SGD("a")},
    r"lr must be a number or \(3,\), one per net, got None": {"optimizer": SGD(None)},
    r"lr must be a number or \(3,\), one per net, got \{\}": {"optimizer": SGD(lambda step, params: {})},
    r"x must be a floating tensor, got torch.int64": {"x": torch.ones(N, 4, dtype=torch.int64)},
    r"y\[0\] = 9 must be a class from 0 to 1": {"y": torch.full((N,), 9), "loss": cross_entropy},
    r"y\[0\] = -100 must be a class from 0 to 1": {"y": torch.full((N,), -100), "loss": cross_entropy},
}


def test_forward_must_give_a_tensor():
    with pytest.raises(TypeError, match=r"forward must give a tensor \(3, batch, ...\), got NoneType"):
        train(lambda p, x: None, Dense.params(), Dense.x, Dense.y, SGD(0.1), 3)


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    given = {"params": Dense.params(), "x": Dense.x, "y": Dense.y, "optimizer": SGD(0.1), "steps": 3}
    given |= REFUSED[sentence]
    if "w1" in given:
        given["params"]["w1"] = given.pop("w1")
    with pytest.raises((ValueError, TypeError), match=sentence):
        train(Dense.forward, **given)


PARTS_REFUSED = {
    r"momentum must lie in \[0, 1\), got 1": lambda: SGD(0.1, momentum=1),
    r"betas\[1\] must lie in \[0, 1\), got 1.0": lambda: Adam(0.1, betas=(0.9, 1.0)),
    r"betas must be two numbers, got \(0.9,\)": lambda: Adam(0.1, betas=(0.9,)),
    r"weight_decay must lie in \[0, inf\), got 1e-08 and -1": lambda: Adam(0.1, weight_decay=-1),
    r"weight must be \(net, out, in\), got \(2, 3\)": lambda: linear(randn(4, 3), randn(2, 3)),
    r"bias must be \(2, 5\) for weight": lambda: linear(randn(4, 3), randn(2, 5, 3), randn(5)),
    r"weight must be \(net, out, in, k, k\)": lambda: conv2d(randn(4, 3, 8, 8), randn(5, 3, 3, 3)),
    r"x must be \(batch, 3 or 6, height": lambda: conv2d(randn(4, 4, 8, 8), randn(2, 5, 3, 3, 3)),
    r"bias must be \(2, 5\)": lambda: conv2d(randn(4, 3, 8, 8), randn(2, 5, 3, 3, 3), randn(5)),
    r"x must be \(batch, 3·channels, ...\), got \(4, 8\)": lambda: to_nets(randn(4, 8), 3),
    r"generators must hold one generator a net": lambda: normal((2,), []),
    r"std must lie in \[0, inf\), got -1": lambda: normal((2,), generators(), std=-1),
    r"shape must be \(out, in\)": lambda: he((4,), generators()),
    r"y must be int64 of shape \(7,\) or \(3, 7\) for output \(3, 7, 4\), got torch.float64": lambda: cross_entropy(
        randn(3, 7, 4), randn(7)
    ),
    r"y must be int64 of shape \(7,\) or \(3, 7\) .* \(6,\)": lambda: accuracy(randn(3, 7, 4), torch.arange(6)),
}


@pytest.mark.parametrize("sentence", PARTS_REFUSED)
def test_bad_parts_are_refused_in_a_sentence(sentence):
    with pytest.raises(ValueError, match=sentence):
        PARTS_REFUSED[sentence]()


@pytest.mark.parametrize("make", [normal, he, xavier])
def test_weights_are_refused_where_and_in_what_they_cannot_be(make):
    for dtype in (torch.int64, torch.complex64, "float32"):
        with pytest.raises(TypeError, match="dtype must be a floating dtype such as torch.float32, got"):
            make((3, 2), generators(), dtype=dtype)
    for device in ("xpu:7", "cudas"):
        with pytest.raises(ValueError, match=f"device must name a device of this computer .* got '{device}'"):
            make((3, 2), generators(), device=device)
    assert make((3, 2), generators(), device="cpu", dtype=torch.float32).dtype == torch.float32


# --- Devices -----------------------------------------------------------------------------------------------------


def run_of(problem, optimizer, **options):
    def call(params, x, y):
        who = {"generators": options["generators"]()} if "generators" in options else {}
        return train(problem.forward, params, x, y, optimizer, 12, loss=problem.loss, **(options | who))

    return call, problem.params(), problem.x, problem.y


OWN_BATCHES = {"batch": 5, "generators": generators, "stop_loss": 0.5, "clip": 0.5, "record_every": 4}
CALLS = {
    "linear": (linear, randn(7, 4), randn(3, 5, 4), randn(3, 5)),
    "conv2d": (conv2d, randn(7, 2, 5, 5), randn(3, 4, 2, 3, 3), randn(3, 4)),
    "to_nets": (lambda x: to_nets(x, 3), randn(7, 6, 2)),
    "mse": (mse, randn(3, 7, 4), randn(7, 4, seed=1)),
    "cross_entropy": (cross_entropy, randn(3, 7, 4), torch.arange(7) % 4),
    "accuracy": (accuracy, randn(3, 7, 4), torch.arange(7) % 4),
    "gradients": (lambda p, x, y: training.gradients(Dense.forward, p, x, y), Dense.params(), Dense.x, Dense.y),
    "train dense": run_of(Dense, SGD(RATES, momentum=0.9), **OWN_BATCHES),
    "train images": run_of(Images, Adam(RATES, weight_decay=0.1), validate=lambda p: p["w0"].flatten(1).norm(dim=1)),
    "train shared": run_of(Dense, Adam(lambda step, p: 0.1), batch=4, generators=lambda: compute.generator(1)),
}


def assert_same(result, expected):
    if isinstance(expected, training.Trained):
        result, expected = vars(result), vars(expected)
        result, expected = ({k: v for k, v in it.items() if v is not None} for it in (result, expected))
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_same_values_on_every_device(device, name):
    function, *inputs = CALLS[name]
    assert_same(device.run(function, *inputs), function(*inputs))


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_made_without_a_device(name):
    function, *inputs = CALLS[name]
    with forgotten_device():
        result = function(*inputs)
    assert_same(result, function(*inputs))


@pytest.mark.parametrize("make", [lambda g: normal((3, 2), g), lambda g: he((3, 2), g), lambda g: xavier((3, 2), g)])
def test_initial_weights_are_the_same_on_every_device(device, make, monkeypatch):
    expected = make(generators())
    monkeypatch.setenv("LABKIT_DEVICE", str(device.place))
    torch.testing.assert_close(device.back(make(generators())), expected, rtol=0, atol=0)
    with forgotten_device():
        assert torch.equal(device.back(make(generators())), expected)


def test_every_public_function_is_called_on_a_device():
    own = inspect.getmembers(training, lambda it: inspect.isfunction(it) and it.__module__ == training.__name__)
    drawn = {"generators", "normal", "he", "xavier"}  # in the test above
    assert {name for name, _ in own if not name.startswith("_")} <= {name.split()[0] for name in CALLS} | drawn
