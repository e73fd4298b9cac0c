"""Depth expansion: the experiments of section g of the theory notes (mechanism of arXiv 2605.08297; numbers are ours).

The notes give one net where no seeds are named: its scatter is taken to be that of the nets here. Verdicts (a sign, a
winner, how many seeds of 12) stand beside the numbers; where a number of the notes depends on a detail that they do
not fix, only the verdict is compared.
"""

import math
import warnings
from functools import cache

import numpy as np
import torch

from labkit import compute, sweep
from labkit.depth import covariance, jumpboard, study
from labkit.depth.network import PostNormResNet, block_names, fit, insert_block
from labkit.depth.task import TEACHER_SEED, TeacherTask, digits_sample
from labkit.training import SGD
from tests.verify.claim import Claim

SEEDS = 12
POPULATION = 20_000  # samples that choose a direction, and as many that judge it
DEPTHS = (1, 2, 4, 8, 16)


@cache
def teacher():
    return TeacherTask(compute.generator(TEACHER_SEED))


def dead_starts(init, activation, seed):
    """|gradient| with respect to the block and change of the loss after 60 steps of gradient descent on it."""
    task = teacher()
    x, y = task.sample(1000, compute.generator(100 + seed))
    start = PostNormResNet(9, 16, 2, 16, 4, generators=study.streams([seed], study.WEIGHTS), activation=activation)
    new = insert_block(fit(start, x, y, 60).model, 1, 16, init, activation=activation)
    names = block_names(new, 2)
    params = {name: value.clone().requires_grad_(name in names) for name, value in new.params.items()}
    loss = jumpboard.sample_losses(new.forward(params, x), y).mean()
    loss.backward()
    after = fit(new, x, y, 60, batch=None, only=names, optimizer=SGD(0.3)).model
    size = math.sqrt(sum(params[name].grad.square().sum().item() for name in names))
    return {"gradient": size, "change": (jumpboard.mean_loss(after, x, y) - loss.detach()).item()}


def boards(hidden, width, depth, seed):
    """A direction from one large sample, judged on another; the controls."""
    task, n = teacher(), POPULATION
    old = study.students(task, 4000, 400, [seed], width, depth).model.to(dtype=torch.float64)
    chosen, judged = (task.sample(n, compute.generator(purpose)) for purpose in (1, 2))
    layer = max(1, depth // 2)
    found = {}
    for kind in jumpboard.KINDS:
        along = jumpboard.direction(old, layer, *chosen, hidden, kind)
        there = jumpboard.evaluate(old, along, *judged)
        step = jumpboard.line_search(old, along, *chosen)
        bend = jumpboard.line_curvature(old, along, *judged, step.t)
        found[kind] = jumpboard.gain_curve(old, along, *judged, step.t[:, None])
        found[f"{kind} guaranteed"] = there.gain**2 / (2 * bend)
        if kind == "ridge":
            found |= {"explained": there.explained, "slope": -there.gain}
            h = 1e-3
            ahead, back = (jumpboard.mean_loss(jumpboard.insert_direction(old, along, t), *judged) for t in (h, -h))
            found |= {"difference": (ahead - back) / (2 * h)}
            found |= {"n_95": covariance.samples_to_see(jumpboard.scores(old, along, *judged))}
    found["temperature"] = jumpboard.temperature_gain(old(chosen[0]), chosen[1], old(judged[0]), judged[1])[1]
    moved, _ = jumpboard.parameter_step(old, *chosen)
    found["old weights"] = jumpboard.mean_loss(old, *judged) - jumpboard.mean_loss(moved, *judged)
    sigma = covariance.gradient_covariance(jumpboard.activation_gradient(old, layer, *judged))
    found["effective rank"] = covariance.measures(sigma).effective_rank
    return {name: value.item() for name, value in found.items()}


def covariances(width, depth, layer, seed):
    """How diagonal Σ_g is."""
    task = teacher()
    old = study.students(task, 4000, 400, [seed], width, depth).model.to(dtype=torch.float64)
    g = jumpboard.activation_gradient(old, layer, *task.sample(POPULATION, compute.generator(2)))
    found = covariance.measures(covariance.gradient_covariance(g))
    return {
        "off-diagonal": found.off_diagonal.item(),
        "correlation": found.mean_correlation.item(),
        "effective rank": found.effective_rank.item(),
        "rank": found.rank.item(),
    }


def signals(depth, where, seed):
    """rms ‖g‖ and ‖M‖, without its bias, of a student of 60 000 samples on others; l* = 1, D/2 or D."""
    task = teacher()
    layer = {"first": 1, "middle": max(1, depth // 2), "last": depth}[where]
    old = study.students(task, 60_000, 400, [seed], 16, depth).model.to(dtype=torch.float64)
    x, y = task.sample(POPULATION, compute.generator(2))
    return signal(old, layer, x, y)


def digit_signals(depth, seed):
    """The same of 1000 digits, on those that trained and on the others, at l* = D/2."""
    sample = digits_sample(1000, compute.generator(seed))
    start = PostNormResNet(65, 16, depth, 16, 10, generators=study.streams([seed], study.WEIGHTS))
    old = fit(start, sample.x, sample.y, 400, batch=256).model
    layer = max(1, depth // 2)
    train, test = (signal(old, layer, *part) for part in (sample[:2], sample[2:]))
    return {"train": train["gradient"], "test": test["gradient"]}


def signal(model, layer, x, y):
    g, z = jumpboard.activation_gradient(model, layer, x, y), model.bottom(x, layer)
    found = jumpboard.debiased_signal(g, jumpboard.features(model, z, jumpboard.draw_features(model, 64)))
    size = found.debiased.clamp(min=0).sqrt().item()
    return {"gradient": g.square().sum(-1).mean().sqrt().item(), "signal": size}


def insertions(n, steps, seed):
    """Changes of the population risk, of all seeds at once."""
    task, seeds = teacher(), [int(s) for s in seed]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no step along this direction")  # of a fresh sample: its step is 0
        done = study.insertion(task, study.students(task, int(n[0]), int(steps[0]), seeds), seeds)
    found = {way: done.change(way) for way in study.WAYS}
    found |= {"against control": done.against_control, "bars": done.bars}
    return {name: value.cpu().numpy() for name, value in found.items()}


def table(function, seeds=SEEDS, batched=False, **grid):
    return sweep.run(function, grid, seeds, batched=batched, progress=False)


def mean(values):
    """Mean and standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def exponent(x, values):
    """Slope of ln mean against ln x, (x, seed) values, and its standard error over seeds."""
    logs = np.log(np.asarray(values))
    slopes = [np.polyfit(np.log(x), column, 1)[0] for column in logs.T]
    return mean(slopes)


def claims():
    yield from dead_claims()
    yield from board_claims()
    yield from covariance_claims()
    yield from signal_claims()
    yield from insertion_claims()
    yield from width_claims()


def dead_claims():
    for init, activation in (("zero_both", "relu"), ("zero_both", "tanh"), ("zero_in", "relu")):
        done = table(dead_starts, 2, init=[init], activation=[activation])
        size = float(np.abs(done["gradient"]).max() + np.abs(done["change"]).max())
        yield Claim(f"(i) {init}, {activation}: |gradient| + |change| after 60 steps", size, 0.0)
    for init, activation in (("zero_out", "relu"), ("zero_in", "tanh")):
        done = table(dead_starts, 4, init=[init], activation=[activation])
        yield Claim(f"(i) {init}, {activation}: share of nets that improve", float((done["change"] < 0).mean()), 1.0)


def board_claims():
    """Section b: D = 2, d = 16, n = 4000, l* = 1."""
    notes = {4: 0.0010, 16: 0.0027, 64: 0.0089, 256: 0.0161}
    for hidden, note in notes.items():
        values = table(boards, hidden=[hidden], width=[16], depth=[2])["explained"]
        yield Claim(f"(i) out-of-sample E‖Πg‖², m {hidden}", *shuffle(values, note))
    done = table(boards, hidden=[64], width=[16], depth=[2])
    worst = float(np.abs(done["slope"] / done["difference"] - 1).max())
    yield Claim("(i) slope / central difference - 1, h = 1e-3, ReLU", worst, 0.0, tolerance=2e-3)
    for name, note in (("ridge", 0.0129), ("gradient", 0.00261), ("temperature", 0.0016), ("old weights", 0.0049)):
        yield Claim(f"(i) gain on other samples, {name}", *shuffle(done[name], note))
    ratio = done["ridge"] / done["ridge guaranteed"]
    yield Claim("(i) ridge, gain / guaranteed", *shuffle(ratio, 0.0129 / 0.0115))
    share = float((done["ridge"] > 2 * done["gradient"]).mean())
    yield Claim("(i) share of nets whose ridge gain is twice the other", share, 1.0, tolerance=0.1)


def shuffle(values, note):
    """(ours, note, se, scatter of the notes' one net)."""
    ours, se = mean(values)
    return ours, note, se, se * math.sqrt(len(values))


def covariance_claims():
    """Bands of section c: off-diagonal energy .53–.93, mean |corr| .24–.64, r_eff 1.4–5.0; rank K − 1 at the end."""
    bands = {"off-diagonal": (0.53, 0.93), "correlation": (0.24, 0.64), "effective rank": (1.4, 5.0)}
    for width, depth, layer in ((16, 2, 1), (16, 4, 2), (64, 2, 1), (16, 2, 2)):
        done = table(covariances, 6, width=[width], depth=[depth], layer=[layer])
        for name, (low, high) in bands.items():
            ours, se = mean(done[name])
            middle, half = (low + high) / 2, (high - low) / 2
            yield Claim(f"(ii) d {width}, D {depth}, l* {layer}: {name}", ours, middle, se, tolerance=half)
        if layer == depth:
            yield Claim(f"(ii) d {width}, D {depth}, l* {layer}: rank", float(done["rank"].max()), 3.0)


def signal_claims():
    notes = {"middle": (-0.16, -0.11), "first": (0.01, 0.0), "last": (-0.06, 0.13)}
    for where, (size, seen) in notes.items():
        done = table(signals, 4, depth=DEPTHS, where=[where])
        for name, note in (("gradient", size), ("signal", seen)):
            ours, se = exponent(DEPTHS, done[name].reshape(len(DEPTHS), -1))
            yield Claim(f"(iii) {name} against depth, l* {where}: exponent", ours, note, se, tolerance=0.1)
    done = table(digit_signals, 6, depth=DEPTHS)
    ours, se = exponent(DEPTHS, done["train"].reshape(len(DEPTHS), -1))
    yield Claim("(iii) digits, train gradient against depth: exponent", ours, -1.08, se, tolerance=0.3)
    test = done["test"].reshape(len(DEPTHS), -1)
    yield Claim("(iii) digits, share of seeds whose test gradient rises", float((test[-1] > test[0]).mean()), 1.0)


INSERTIONS = {  # (n, steps): seeds of 12 that improve by jumpboard, continue, insert, block, and against the control
    (8000, 60): (12, 12, 12, 12, 12),
    (500, 60): (3, 0, 0, 0, 0),
    (2000, 60): (12, 12, 11, 12, 0),
    (2000, 400): (0, 0, 0, 0, 0),
    (8000, 400): (5, 7, 10, 11, 10),
}


def insertion_claims():
    ways = ("jumpboard", "continue", "insert", "block", "against control")
    for (n, steps), notes in INSERTIONS.items():
        done = table(insertions, batched=SEEDS, n=[n], steps=[steps])
        for way, note in zip(ways, notes, strict=True):
            better = int((done[way] < 0).sum())
            chance = (note + 1) / (SEEDS + 2)  # a seed of the notes improves with about this chance
            se = math.sqrt(SEEDS * chance * (1 - chance))
            yield Claim(f"(vi) n {n}, {steps} steps: seeds that improve, {way}", better, note, se, se)
        sums = np.abs(done["bars"].sum(1) - done["insert"]).max()
        yield Claim(f"(vi) n {n}, {steps} steps: bars - change", float(sums), 0.0, tolerance=1e-6)
    done = table(insertions, batched=SEEDS, n=[8000], steps=[60])
    for way, note in (("jumpboard", -0.014), ("insert", -0.073), ("against control", -0.006)):
        yield Claim(f"(vi) n 8000, 60 steps: change, {way}", *shuffle(done[way], note))


def width_claims():
    """Section g (vii): exponents of n_95 from the ends that the notes give."""
    sizes = (8, 64, 256)
    done = table(boards, hidden=sizes, width=[16], depth=[2])["n_95"].reshape(3, -1)
    ours, se = exponent(sizes, done)
    yield Claim(
        "(vii) n_95 against block width m: exponent", ours, math.log(100 / 744) / math.log(32), se, tolerance=0.1
    )
    for hidden, note, row in zip(sizes, (744, 166, 100), done, strict=True):
        yield Claim(f"(vii) n_95, m {hidden}", *shuffle(row, note))
    sizes = (4, 8, 16, 32)
    done = table(boards, 6, hidden=[64], width=sizes, depth=[2])["n_95"].reshape(4, -1)
    ours, se = exponent(sizes, done)
    yield Claim(
        "(vii) n_95 against base width d: exponent", ours, math.log(195 / 145) / math.log(8), se, tolerance=0.15
    )
    done = table(boards, 6, hidden=[64], width=[16], depth=DEPTHS)["n_95"].reshape(len(DEPTHS), -1)
    ours, se = exponent(DEPTHS, done)
    yield Claim("(vii) n_95 against depth: exponent", ours, math.log(205 / 121) / math.log(16), se, tolerance=0.15)
