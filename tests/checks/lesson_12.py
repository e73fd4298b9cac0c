"""Right and wrong answers to the exercises of lesson 12, as a learner would write them."""

import math

import torch

from labkit.depth import bounds


def block_gain(
    left=lambda w: (1 - w).clamp(min=0),
    stretch=lambda w: 1 + w,
    scale=lambda a, eps: (a * a + eps) ** 0.5,
    after=lambda a, scale: a / scale,
):
    def answer(w, r, eps):
        a = left(w) * r
        return stretch(w) / scale(a, eps), after(a, (a * a + eps) ** 0.5)

    return answer


def with_chain(w, r, eps):
    net = [
        bounds.NormClass(
            depth=1, width=4, s_1=si, s_2=1, s_in=1, s_out=1, input_norm=1, input_rms=1, eps=e, measured_rms=0
        )
        for si, e in zip(w.tolist(), eps.tolist(), strict=True)
    ]
    low = [max(1 - c.s_1, 0) * ri for c, ri in zip(net, r.tolist(), strict=True)]
    scale = [math.hypot(a, math.sqrt(c.eps)) for a, c in zip(low, net, strict=True)]
    return [(1 + c.s_1) / t for c, t in zip(net, scale, strict=True)], [a / t for a, t in zip(low, scale, strict=True)]


def covered(
    log_size=lambda k, reach, eta: k * torch.log(1 + 2 * reach / eta),
    sides=2.0,
    move=2.0,
    shrink=2.0,
    root=0.5,
    etas=400,
    low=-7,
):
    def answer(n, k, reach, delta):
        eta = torch.logspace(low, 0.5, etas, dtype=torch.float64)
        n, k, reach, delta = (v[:, None] for v in (n, k, reach, delta))
        spread = (log_size(k, reach, eta) + torch.log(sides / delta)) / (shrink * n)
        return (move * eta + spread**root).min(1).values

    return answer


def by_loop(n, k, reach, delta):
    found = []
    for size, many, far, fail in zip(n.tolist(), k.tolist(), reach.tolist(), delta.tolist(), strict=True):
        trials = [10 ** (-7 + i / 60) for i in range(450)]
        found.append(
            min(
                2 * eta + math.sqrt((many * math.log(1 + 2 * far / eta) + math.log(2 / fail)) / (2 * size))
                for eta in trials
            )
        )
    return found


def size(factor=8.0, margin=lambda m: m**2, span=lambda b: b**2, log=lambda d: torch.log(1 / d), last=lambda n: n):
    return lambda m, d, b: last(factor * span(b) * log(d) / margin(m))


def routes(
    sure=lambda train, fails: (1 - train - fails).clamp(min=0),
    exponent=lambda m, n, b: n * m**2 / (8 * b**2),
    u=lambda n, test, b, train, m: b * torch.sqrt(2 * torch.log(1 / test) / n),
):
    def answer(margin, n, train, test, b):
        return sure(train, torch.exp(-exponent(margin, n, b))), u(n, test, b, train, margin)

    return answer


def less_both(sure):
    def answer(margin, n, train, test, b):
        return sure(train, test, torch.exp(-n * margin**2 / (8 * b**2))).clamp(min=0), free()(n, test, b, train, margin)

    return answer


def free(log=lambda d: torch.log(1 / d), scale=1.0, which="test"):
    return lambda n, test, b, train, m: scale * b * torch.sqrt(2 * log(test if which == "test" else train) / n)


def by_hand(margin, size, train, test, loss_range):
    p = torch.relu(1 - train - bounds.route_a_failure(margin, size, loss_range))
    return p, bounds.hoeffding_deviation(size, test, loss_range)


def by_labkit(n, k, reach, delta):
    return bounds.directions_bound(n, k, reach, 1.0, 1.0, fresh_sample=True, fail_prob=delta)


RIGHT = {
    "12.1": [block_gain(), with_chain, lambda *a: [part.numpy() for part in block_gain()(*a)]],
    "12.2": [covered(), by_loop, by_labkit],
    "12.3": [size(), size(last=torch.ceil), bounds.hoeffding_test_size],
    "12.4": [routes(), by_hand],
}

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "12.1": [
        ("constant of N alone", 2, block_gain(stretch=lambda w: 1 + 0 * w)),
        ("not r.", 0, lambda w, r, eps: ((1 + w) / (r**2 + eps) ** 0.5, r / (r**2 + eps) ** 0.5)),
        ("nothing is left of the guarantee", 0, block_gain(left=lambda w: 1 - w)),
        ("uses eps alone", 2, block_gain(scale=lambda a, eps: eps**0.5)),
        ("beta: the root is missing", 2, block_gain(scale=lambda a, eps: a * a + eps)),
        ("not 1 - w.", 2, block_gain(stretch=lambda w: (1 - w).clamp(min=0))),
        ("the path around the block", 2, block_gain(stretch=lambda w: w)),
        ("worst block works against its input", 0, block_gain(left=lambda w: 1 + w)),
        ("where N divides", 2, block_gain(scale=lambda a, eps: 1 / (a * a + eps) ** 0.5)),
        ("before the norm", 2, block_gain(after=lambda a, scale: a)),
        ("itself: divide rms(u)", 2, block_gain(after=lambda a, scale: scale)),
        ("only where eps = 0", 2, block_gain(after=lambda a, scale: 1 + 0 * a)),
        ("r_next: the root is missing", 2, block_gain(after=lambda a, scale: a / scale**2)),
        ("eps stands inside the root", 2, block_gain(scale=lambda a, eps: a + eps)),
        ("not its square", 2, block_gain(scale=lambda a, eps: (a * a + eps * eps) ** 0.5)),
        ("r_next: eps stands inside", 2, block_gain(after=lambda a, scale: a / (a + scale**2 - a * a))),
        ("beta: r is missing", 0, lambda w, r, eps: block_gain()(w, r**0, eps)),
        ("r_next: r is missing", 2, lambda w, r, eps: (block_gain()(w, r, eps)[0], block_gain()(w, r**0, eps)[1])),
        ("returned inf at w=", 2, block_gain(scale=lambda a, eps: a)),
        ("yours are swapped", 2, lambda *a: block_gain()(*a)[::-1]),
        ("pair (beta, r_next)", 0, lambda *a: 1.0),
        ("beta: at w=", 2, block_gain(stretch=lambda w: (1 + w) ** 2)),
    ],
    "12.2": [
        ("both signs of the deviation", 2, covered(sides=1.0)),
        ("A factor of 2 is missing at eta", 2, covered(move=1.0)),
        ("so 1 + 2 reach/eta", 2, covered(log_size=lambda k, reach, eta: k * torch.log(1 + reach / eta))),
        ("k multiplies only", 2, lambda n, k, reach, delta: covered()(n / k, k**0, reach, delta)),
        ("k is missing", 0, covered(log_size=lambda k, reach, eta: torch.log(1 + 2 * reach / eta))),
        ("stands inside the logarithm", 0, covered(log_size=lambda k, reach, eta: torch.log(1 + 2 * k * reach / eta))),
        ("The root is missing", 0, covered(root=1.0)),
        ("2n, not by n", 0, covered(shrink=1.0)),
        ("of a single function", 0, covered(log_size=lambda k, reach, eta: 0 * eta, low=-9)),
        ("times the least one", 0, covered(log_size=lambda k, reach, eta: (1 + 2 * reach / eta) ** k)),
        ("Close, but not the least", 2, covered(etas=9)),
        ("A valid bound, but", 0, covered(etas=1, low=-1)),
        ("At n=", 0, covered(log_size=lambda k, reach, eta: k * torch.log(reach / eta + 0 * k).clamp(min=0) / 3)),
        ("expected (6,)", 0, lambda *a: covered()(*a)[:3]),
        ("A valid bound, but up to", 0, lambda n, k, r, d: 0 * n + 3.0),
    ],
    "12.3": [
        ("one of the two is missing", 0, size(2.0)),
        ("both are missing", 0, size(0.5)),
        ("four times too large", 0, size(32.0)),
        ("margin enters squared", 0, size(margin=lambda m: m)),
        ("loss_range enters squared", 0, size(span=lambda b: b)),
        ("loss_range is missing", 0, size(span=lambda b: 1)),
        ("The logarithm is missing", 0, size(log=lambda d: 1 / d)),
        ("log10", 0, size(log=lambda d: torch.log10(1 / d))),
        ("The sign", 0, size(log=torch.log)),
        ("delta is missing", 0, size(log=lambda d: 1)),
        ("rounded down", 1, size(last=torch.floor)),
        ("One side is enough", 1, size(log=lambda d: torch.log(2 / d))),
        ("At margin=", 0, size(log=lambda d: torch.log(1 / d) ** 2)),
    ],
    "12.4": [
        ("that of the training bound is missing", 1.5, routes(sure=lambda train, fails: 1 - fails)),
        ("take one minus it", 1.5, routes(sure=lambda train, fails: (train + fails).clamp(max=1))),
        ("of the test set alone", 1.5, routes(sure=lambda train, fails: fails)),
        ("fail_test sets u alone; what fails", 1.5, less_both(lambda train, test, fails: 1 - train - test - fails)),
        ("in route A the test set fails with", 1.5, less_both(lambda train, test, fails: 1 - train - test)),
        ("a product would", 1.5, routes(sure=lambda train, fails: (1 - train) * (1 - fails))),
        ("exponent is 4 times too large", 1.5, routes(exponent=lambda m, n, b: n * m**2 / (2 * b**2))),
        ("exponent is 16 times too large", 1.5, routes(exponent=lambda m, n, b: 2 * n * m**2 / b**2)),
        ("probability: the margin enters squared", 1.5, routes(exponent=lambda m, n, b: n * m / (8 * b**2))),
        ("probability: loss_range enters squared", 1.5, routes(exponent=lambda m, n, b: n * m**2 / (8 * b))),
        ("probability: loss_range is missing", 1.5, routes(exponent=lambda m, n, b: n * m**2 / 8)),
        ("clamp it at 0", 2.25, routes(sure=lambda train, fails: 1 - train - fails)),
        ("no factor 2", 2.25, routes(sure=lambda train, fails: (1 - train - 2 * fails).clamp(min=0))),
        ("half of what it should be", 1.5, routes(u=free(scale=0.5))),
        ("u: the root is missing", 1.5, routes(u=lambda *a: free()(*a) ** 2)),
        ("u: loss_range is missing", 1.5, routes(u=lambda n, test, b, *_: torch.sqrt(2 * torch.log(1 / test) / n))),
        ("fail_test belongs there", 1.5, routes(u=free(which="train"))),
        ("half of the margin, as in route A", 1.5, routes(u=lambda n, test, b, train, m: m / 2)),
        ("without the factor 2", 1.5, routes(u=free(scale=2**-0.5))),
        ("ln(1/fail_test), not", 2.25, routes(u=free(log=lambda d: torch.log(2 / d)))),
        ("pair (probability, u)", 0, lambda *a: 0.5),
        ("probability: at margin=", 1.5, routes(sure=lambda train, fails: (1 - train - fails).clamp(min=0) ** 2)),
    ],
}  # fmt: skip
