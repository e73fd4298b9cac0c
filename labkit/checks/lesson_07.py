"""Exercises of lesson 07: a task and its shared characters, a rescaling, the Fourier power, a grokking curve."""

import math

import torch
from torch import Tensor

from labkit import training
from labkit.checks.attempt import as_tensor, call, close, compare, compare_parts, pair, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.transfer.transformer import Transformer

PRETRAINED = 15  # the modulus of the lesson

# ---- 07.1

TASKS = [(6, 15, 5), (7, 15, 21), (8, 15, 7), (5, 15, 15), (6, 12, 18), (9, 8, 12), (7, 10, 4), (8, 9, 27), (5, 7, 14)]
TASKS += [(6, 16, 16), (7, 60, 45), (8, 11, 13)]  # (vocabulary, modulus of pretraining, of fine-tuning)


def primes(n: int) -> set[int]:
    """The prime factors of n."""
    return {p for p in range(2, n + 1) if n % p == 0 and all(p % q for q in range(2, p))}


def task(answer) -> str:
    """task(vocabulary, pretrained, modulus) -> labels (vocabulary, vocabulary) and the number of shared characters."""
    tables, counts = [], []
    for v, n, m in TASKS:
        labels, shared = pair(call(answer, vocabulary=v, pretrained=n, modulus=m), "labels, shared")
        labels = as_tensor(labels, (v, v), "one label for each pair of tokens (a, b)")
        shared = as_tensor(shared, (), "one number")
        if not (labels.isfinite().all() and shared.isfinite()):
            raise Wrong(f"At vocabulary={v}, pretrained={n}, modulus={m} something is nan or infinite.")
        tables.append(labels.flatten())
        counts.append(shared)

    def sums(rule) -> Tensor:
        grids = [(*torch.meshgrid(*[torch.arange(v, device="cpu")] * 2, indexing="ij"), v, n, m) for v, n, m in TASKS]
        return torch.cat([torch.as_tensor(rule(*grid)).double().flatten() for grid in grids])

    def each(rule) -> Tensor:
        return torch.tensor([float(rule(n, m)) for _, n, m in TASKS], dtype=torch.float64, device="cpu")

    labels = (
        sums(lambda a, b, v, n, m: (a + b) % m),
        {
            "labels: the remainder is missing: take the sum modulo the modulus.": sums(lambda a, b, v, n, m: a + b),
            "labels: that is the product: add a and b.": sums(lambda a, b, v, n, m: a * b % m),
            "labels: that is the difference: add a and b.": sums(lambda a, b, v, n, m: (a - b) % m),
            "labels: add first, then take the remainder, once more at least: yours reach 2M - 2.": sums(
                lambda a, b, v, n, m: a % m + b % m
            ),
            "labels: that is modulo the vocabulary, which is only the number of tokens.": sums(
                lambda a, b, v, n, m: (a + b) % v
            ),
            "labels: that is modulo the modulus of pretraining: the new task has its own.": sums(
                lambda a, b, v, n, m: (a + b) % n
            ),
            "labels: that is the quotient: take the remainder.": sums(lambda a, b, v, n, m: (a + b) // m),
            "labels: tokens are counted from 0: token a stands for the number a.": sums(
                lambda a, b, v, n, m: (a + b + 2) % m
            ),
            "labels: that is b alone.": sums(lambda a, b, v, n, m: b % m),
            "labels: that is a alone.": sums(lambda a, b, v, n, m: a % m),
        },
        {
            "labels: remainders are 0 to M - 1: yours are counted from 1.": sums(lambda a, b, v, n, m: (a + b) % m + 1),
        },
    )
    shared = (
        each(lambda n, m: math.gcd(n, m) - 1),
        {
            "shared: that is the least common multiple: the frequencies in common are multiples of 1/gcd.": each(
                math.lcm
            ),
            "shared: that counts the least common multiple: the frequencies in common are multiples of 1/gcd.": each(
                lambda n, m: math.lcm(n, m) - 1
            ),
            "shared: all or nothing? A part of the characters can be shared: those with k/M a multiple of 1/gcd.": each(
                lambda n, m: m - 1 if n % m == 0 else 0
            ),
            "shared: a divisor is not needed: 15 and 21 share the two characters of 3.": each(
                lambda n, m: math.gcd(n, m) - 1 if n % m == 0 or m % n == 0 else 0
            ),
            "shared: those are the indices k that both have; the frequencies k/N and k/M have to agree.": each(
                lambda n, m: min(n, m) - 1
            ),
            "shared: that is the number of common prime factors: a factor 3 brings two characters.": each(
                lambda n, m: len(primes(n) & primes(m))
            ),
            "shared: those are the characters of the new modulus: count those that the old one has too.": each(
                lambda n, m: m - 1
            ),
            "shared: those are the characters of the old modulus: count those that the new one has too.": each(
                lambda n, m: n - 1
            ),
            "shared: that is the number of common divisors, not of multiples of 1/gcd below 1.": each(
                lambda n, m: sum(n % d == 0 and m % d == 0 for d in range(1, n + 1))
            ),
            "shared: those are the new ones: M - gcd characters are not shared.": each(lambda n, m: m - math.gcd(n, m)),
        },
        {
            "shared: gcd counts the constant too: k = 0, which every modulus has. Leave it out: gcd - 1.": each(
                math.gcd
            ),
            "shared: k and M - k are two characters: you count them as one.": each(lambda n, m: math.gcd(n, m) // 2),
            "shared: k and M - k are two characters: half of them are missing.": each(
                lambda n, m: (math.gcd(n, m) - 1) / 2
            ),
            "shared: k and M - k are two characters: half of them, rounded down, are missing.": each(
                lambda n, m: (math.gcd(n, m) - 1) // 2
            ),
            "shared: that is a share: the number is asked for.": each(
                lambda n, m: (math.gcd(n, m) - 1) / (m - 1) if m > 1 else 0
            ),
        },
    )
    where = {"pretrained": each(lambda n, m: n), "modulus": each(lambda n, m: m)}
    values, sentences, shares = [torch.cat(tables), torch.stack(counts)], [], []
    spots = {
        "a": sums(lambda a, b, v, n, m: a),
        "b": sums(lambda a, b, v, n, m: b),
        "modulus": sums(lambda a, b, v, n, m: 0 * a + m),
    }
    parts = {"labels": (labels, spots), "shared": (shared, where)}
    for value, (name, (part, inputs)) in zip(values, parts.items(), strict=True):
        try:
            compare_parts([value], {name: part}, **inputs)
            shares.append(1)
        except Wrong as wrong:
            sentences.append(str(wrong))
            shares.append(wrong.share)
    if sentences:
        raise Wrong(sentences[0], sum(shares) / 2)
    return "Two numbers that have 3 in common have two characters in common, whatever else is in them."


# ---- 07.2

POWERS = {"embed": 1, "position": 1, "query.0": -1, "key.0": -1, "value.0": 0, "output.0": 0, "in.0": 0, "out.0": 0}
POWERS["unembed"] = -1  # of kappa, by which each weight is multiplied


def rescaled(answer) -> str:
    """rescale(params, kappa) -> a new dict: E, P times kappa, W_Q, W_K, U divided by it."""
    found = []
    for kappa in (0.3, 2.5):
        params = Transformer().initial(21, training.generators([7, 72]), device="cpu", dtype=torch.float64)
        given = {name: value.clone() for name, value in params.items()}
        returned = call(answer, params=given, kappa=kappa)
        if not isinstance(returned, dict):
            raise Wrong("Your function must return a dict with the same names as params.")
        missing = [name for name in POWERS if name not in returned]
        if missing:
            raise Wrong(f"Your dict lacks {missing[0]!r}: hand over every weight, also those that stay as they are.")
        powers = {}
        for name, old in params.items():
            new = as_tensor(returned[name], tuple(old.shape), f"{name} keeps its shape")
            steps = [n / 2 for n in range(-8, 9)]
            fits = [n for n in steps if close(new, kappa**n * old).all()]
            if not fits:
                raise Wrong(f"{name} is not a power of kappa times what it was: multiply the whole tensor.")
            powers[name] = fits[0]
        touched = any(not torch.equal(given[name], params[name]) for name in params)
        found.append((powers, touched))
    (powers, touched), (other, _) = found
    if powers != other:
        name = next(name for name in powers if powers[name] != other[name])
        raise Wrong(f"{name} is multiplied by another power of kappa when kappa is above 1: one rule for all kappa.")
    _judge_powers(powers)
    if touched:
        raise Wrong(
            "The numbers are right, but you changed the weights that were handed in: make new tensors (x * kappa, not "
            "x *= kappa), or the network before the change is lost.",
            0.5,
        )
    return "The function is the same, its gradients are not: small weights get the large ones."


def _judge_powers(powers: dict[str, float]) -> None:
    """Raise `Wrong` when the function changes, or another rescaling was asked for."""
    if powers == POWERS:
        return
    if powers == {name: -power for name, power in POWERS.items()}:
        raise Wrong("Upside down: kappa > 1 makes the embedding large (early-heavy).", 0.5)
    if not any(powers.values()):
        raise Wrong("Nothing has changed: multiply the embedding by kappa, then undo it where it leaves the network.")
    stream = powers["embed"]  # the residual stream grows by kappa^stream
    if powers["position"] != stream:
        raise Wrong(
            "embed and position are added: multiply both, or the sum changes its direction.",
            0.5 if powers | {"position": 1} == POWERS else 0.0,
        )
    if stream == 0:
        raise Wrong("The embedding has not changed: it is what kappa multiplies.")
    bilinear = powers["query.0"] + powers["key.0"]
    if bilinear == 0:
        raise Wrong(
            "Scores are products of a query and a key, each made of the stream: they grow by kappa squared, and "
            "attention changes. Divide query and key.",
            0.5 if powers | {"query.0": -1, "key.0": -1} == POWERS else 0.0,
        )
    if bilinear == -stream:
        raise Wrong(
            "Scores grow by kappa twice, once through the query and once through the key: divide both.",
            0.5 if powers | {"query.0": -1, "key.0": -1} == POWERS else 0.0,
        )
    if bilinear == -4 * stream:
        raise Wrong("You divide query and key by kappa squared each: together they undo kappa squared.", 0.5)
    if bilinear != -2 * stream:
        raise Wrong("Scores no longer are what they were: query times key has to lose kappa squared.")
    for first, second in (("value.0", "output.0"), ("in.0", "out.0")):
        branch = powers[first] + powers[second]
        if branch != 0:
            raise Wrong(
                f"{first} and {second} make a branch that is homogeneous: what comes in times kappa goes out times "
                "kappa, as the stream it is added to. Leave both as they are.",
                0.5 if powers | {first: 0, second: 0} == POWERS else 0.0,
            )
    if powers["unembed"] == 0:
        raise Wrong(
            "The stream reaches the unembedding kappa times as large: the logits are off by kappa. Divide unembed.", 0.5
        )
    if powers["unembed"] == stream:
        raise Wrong("The logits grow by kappa squared: divide unembed by kappa, do not multiply.", 0.5)
    if powers["unembed"] != -stream:
        raise Wrong("The logits are no longer what they were: unembed has to undo the kappa of the stream, once.")
    if stream != 1:
        raise Wrong(f"The function is preserved, but the embedding is multiplied by kappa^{stream:g}, not kappa.", 0.5)
    if powers["query.0"] != powers["key.0"]:
        raise Wrong("The function is preserved; share the factor evenly: query and key by 1/kappa each.", 0.5)
    raise Wrong("The function is preserved, but value and out, or the MLP, were to stay as they are.", 0.5)


# ---- 07.3


def folded(embedding: Tensor, modulus: int) -> Tensor:
    """Means over the tokens of each residue class: (net, V, d) -> (net, modulus, d)."""
    return torch.stack([embedding[:, r::modulus].mean(1) for r in range(modulus)], 1)


def power(signal: Tensor, square: bool = True) -> Tensor:
    """|DFT|^2 (or |DFT|) over axis 1, summed over the last: (net, length)."""
    size = torch.fft.fft(signal, dim=1).abs()
    return (size.square() if square else size).sum(-1)


def share(powers: Tensor, picked: tuple[int, ...], total: slice = slice(1, None)) -> Tensor:
    """Power of the picked frequencies over the total."""
    return powers[:, list(picked)].sum(1) / powers[:, total].sum(1)


def mod5_share(answer) -> str:
    """mod5_share(embedding), (net, 30, d) -> share (net,) of the non-constant power mod 15 in the characters of 5."""
    generator = seeded(73)
    nets, width = 12, 6
    tokens = torch.arange(30.0, dtype=torch.float64, device="cpu")
    waves = torch.stack([tokens * k * 2 * math.pi / PRETRAINED for k in range(1, 8)])  # (7, 30)
    waves = torch.cat([waves.cos(), waves.sin()])  # (14, 30)
    sizes = uniform(generator, 0, 1, nets, 1, 7) ** 3
    mixing = uniform(generator, -1, 1, nets, width, 14) * torch.cat([sizes, sizes], -1)
    embedding = (mixing @ waves).mT + uniform(generator, -0.5, 0.5, nets, 1, width)  # a constant on top
    embedding = embedding + 0.3 * uniform(generator, -1, 1, nets, 30, width)  # what is not periodic
    means = folded(embedding, PRETRAINED)
    full, ours = power(means), (3, 6, 9, 12)
    truth = share(full, ours)
    tokenwise = power(embedding)
    plain = means - means.mean(1, keepdim=True)
    by_unit = torch.fft.fft(plain, dim=1).abs().square()
    compare(
        answer,
        truth,
        {
            "The constant counts in yours: leave frequency 0 out of the total.": share(full, ours, slice(None)),
            "Power is the square: yours are amplitudes.": share(power(means, square=False), ours),
            "That is k = 5: the characters of 3. Those of 5 are the multiples of 1/5, and 1/5 is 3/15.": share(
                full, (5, 10)
            ),
            "Those are all others: the characters of 5 are k = 3 and 6 (and 12 and 9).": 1 - truth,
            "That is everything but the characters of 3: the characters of 5 are k = 3 and 6 (and 12 and 9).": (
                1 - share(full, (5, 10))
            ),
            "That is the Fourier transform over the 30 tokens, where 3/15 is frequency 6: first average each class.": (
                share(tokenwise, (3, 6, 24, 27))
            ),
            "Over the 30 tokens k/30 is meant, not k/15: first average each class, then take 3, 6, 9 and 12.": share(
                tokenwise, ours
            ),
            "Over the 30 tokens k/30 is meant, not k/15, also in the total: first average each class.": share(
                tokenwise, ours, slice(1, PRETRAINED)
            ),
            "Those are k = 1 to 4 of 15: the characters of 5 are k/5, and 1/5 is 3/15.": share(full, (1, 2, 3, 4)),
            "Your total holds what differs between two tokens of one class: first average each class.": share(
                tokenwise, (6, 12, 18, 24)
            ),
            "Sum over the units after squaring: the transform of their sum lets them cancel.": share(
                torch.fft.fft(means.sum(-1), dim=1).abs().square(), ours
            ),
            "That is the mean of one share a unit: add up the powers of all units first.": (
                by_unit[:, list(ours)].sum(1) / by_unit[:, 1:].sum(1)
            ).mean(-1),
            "That is the power itself: divide it by that of all k from 1 on.": full[:, list(ours)].sum(1),
            "That is the power over that of the others: divide by the total.": truth / (1 - truth),
            "Means of 3 tokens? Tokens of one class are 15 apart: a, a + 15.": share(
                power(embedding.reshape(nets, 15, 2, width).mean(2)), ours
            ),
            "That is the real part alone: a character has two parts, take the absolute value.": share(
                torch.fft.fft(means, dim=1).real.square().sum(-1), ours
            ),
            "Modulo 5 you see the characters of 5 and no other, whatever there is: fold modulo 15.": torch.ones_like(
                truth
            ),
        },
        {
            "That is k = 3 alone: 6/15 = 2/5 is a character of 5 too.": share(full, (3, 12)),
            "That is k = 6 alone: 3/15 = 1/5 is a character of 5 too.": share(full, (6, 9)),
            "You count k = 3 and 6 of all fourteen: their mirror images 12 and 9 belong to them.": share(full, (3, 6)),
            "Those are the first 15 tokens: average the two tokens of each class.": share(
                power(embedding[:, :PRETRAINED]), ours
            ),
        },
        embedding=embedding,
    )
    return "A number between 0 and 1 for each network: how much of what it keeps is of use modulo 5."


# ---- 07.4

LEVEL, SEEDS, CASES = 0.9, 8, 10
NEVER = 1e6  # stands for inf while values are compared


def curves(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Steps (record,) and accuracies (case, seed, record) that rise late, with dips; some never rise."""
    steps = torch.arange(0, 1025, 25, dtype=torch.float64, device="cpu")
    centers = uniform(generator, 100, 600, CASES, 1, 1) * torch.exp(uniform(generator, -0.7, 0.7, CASES, SEEDS, 1))
    top = uniform(generator, 0.93, 1, CASES, SEEDS, 1)
    top[1:, -1] = 0.6  # the last seed of each case but the first never gets there
    top[CASES - 1, 2:] = 0.7  # and most of the last case
    top[CASES - 2, 4:] = 0.7  # and half of the one before
    rise = torch.sigmoid((steps - centers) / 25)
    accuracy = 0.07 + (top - 0.07) * rise
    dips = (uniform(generator, 0, 1, *accuracy.shape) < 0.08) & (rise > 0.97)
    accuracy = torch.where(dips, 0.7 * accuracy, accuracy)
    accuracy[1:4, :4] = LEVEL * (steps >= 300).double()  # exactly at the level: reached
    return steps, accuracy.clamp(max=1)


def first_steps(steps: Tensor, there: Tensor, never: float = math.inf) -> Tensor:
    """The first step at which ``there`` (..., record) is true, ``never`` where it is nowhere."""
    return torch.where(there.any(-1), steps[there.double().argmax(-1)], never)


def middle(values: Tensor) -> Tensor:
    """Median over the last axis: of an even number the mean of the two in the middle."""
    ordered, n = values.sort(-1).values, values.shape[-1]
    return (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2


def read_curves(answer) -> str:
    """read(steps, accuracy) -> (median, mean, se), each (case,): first step >= 0.9, final accuracy and its error."""
    steps, accuracy = curves(seeded(74))
    returned = call(answer, steps=steps, accuracy=accuracy)
    try:
        parts = tuple(returned)
    except TypeError:
        parts = ()
    if len(parts) != 3:
        raise Wrong(f"Your function must return (median, mean, se), three tensors; it returned {len(parts) or 'one'}.")
    values = [as_tensor(part, (CASES,), "one value a case") for part in parts]
    if any(value.isnan().any() for value in values):
        raise Wrong("One of your values is nan: inf - inf? Sort the seeds and average the two in the middle.")
    there, final = accuracy >= LEVEL, accuracy[..., -1]
    each, mean, spread = first_steps(steps, there), final.mean(-1), final.std(-1)
    reached = there.any(-1)  # (case, seed)
    records = torch.arange(len(steps), dtype=torch.float64, device="cpu")
    stays = there.flip(-1).long().cumprod(-1).flip(-1) > 0
    truth = middle(each), mean, spread / SEEDS**0.5
    named = [
        {
            "median: average the steps of the seeds, not their curves: the mean curve is no one's.": first_steps(
                steps, accuracy.mean(1) >= LEVEL
            ),
            "median: that is a mean of steps: one seed that never gets there makes it infinite.": each.mean(-1),
            "median: that is the number of the record: look up its step.": middle(first_steps(records, there)),
            "median: argmax of no True is 0: a seed that never reaches 0.9 counts as step 0 in yours.": middle(
                first_steps(steps, there, 0.0)
            ),
            "median: a seed that never reaches 0.9 is not there at the last step: it counts as inf.": middle(
                first_steps(steps, there, float(steps[-1]))
            ),
            "median: seeds that never reach 0.9 are left out in yours: they count as inf.": torch.stack(
                [middle(row[ok]) for row, ok in zip(each, reached, strict=True)]
            ),
            "median: that is where it stays above 0.9: the first time is asked for.": middle(first_steps(steps, stays)),
            "median: that is the fastest seed.": each.amin(-1),
            "median: that is the slowest seed.": each.amax(-1),
            "median: that is the level 0.5: take 0.9.": middle(first_steps(steps, accuracy >= 0.5)),
            "median: that is how many seeds got there.": reached.double().sum(-1),
        },
        {
            "mean: that is each seed at its best moment: take the last record.": accuracy.amax(-1).mean(-1),
            "mean: that is the mean over all steps: take the last record.": accuracy.mean((1, 2)),
            "mean: that is the median of the seeds: take their mean.": middle(final),
            "mean: that is the best seed.": final.amax(-1),
            "mean: that is a sum over the seeds.": final.sum(-1),
            "mean: that is the share of seeds that end at 0.9 or more.": (final >= LEVEL).double().mean(-1),
        },
        {
            "se: that is the scatter of single seeds: divide it by the root of their number.": spread,
            "se: divide by the root of the number of seeds, not by the number.": spread / SEEDS,
            "se: that is a variance: take its root.": spread**2 / SEEDS,
            "se: that is the scatter over the steps: the seeds are what is drawn anew.": accuracy.mean(1).std(-1)
            / len(steps) ** 0.5,
            "se: divide by the root of the number of seeds, not of records.": spread / len(steps) ** 0.5,
        },
    ]
    slips = [
        {
            "median: of an even number it is the mean of the two in the middle; torch.median takes the lower.": (
                each.median(-1).values
            ),
            "median: an accuracy of exactly 0.9 has reached it: >=, not >.": middle(
                first_steps(steps, accuracy > LEVEL)
            ),
        },
        {},
        {"se: divide by seeds - 1 in the variance: these are samples.": final.std(-1, correction=0) / SEEDS**0.5},
    ]
    if close(values[1], truth[2]).all() and close(values[2], truth[1]).all():
        raise Wrong("Return (median, mean, se), in this order: the last two are swapped.", 2 / 3)

    def told(table: dict[str, Tensor]) -> dict[str, Tensor]:
        return {says: wrong.clamp(max=NEVER) for says, wrong in table.items()}

    parts = [(right.clamp(max=NEVER), told(m), told(s)) for right, m, s in zip(truth, named, slips, strict=True)]
    parts = dict(zip(("median", "mean", "se"), parts, strict=True))
    case = torch.arange(CASES, dtype=torch.float64, device="cpu")
    try:
        compare_parts([value.clamp(max=NEVER) for value in values], parts, case=case)
    except Wrong as wrong:
        raise Wrong(str(wrong).replace(f"{NEVER:.4g}", "inf"), wrong.share) from None
    return "A median survives seeds that never get there; a mean comes with its error or not at all."


EXERCISES = {
    "07.1": Exercise(points=3, minutes=8, difficulty=1, check=task),
    "07.2": Exercise(points=3, minutes=10, difficulty=2, check=rescaled),
    "07.3": Exercise(points=4, minutes=15, difficulty=2, check=mod5_share),
    "07.4": Exercise(points=3, minutes=12, difficulty=2, check=read_curves),
}
