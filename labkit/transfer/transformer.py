"""A small Transformer that adds modulo M, many nets as one; its exact rescalings; learning to add.

The sequence is (a, b, =) and the answer is read at "=". Each layer, without biases:

    z ← z + W_O Σ_heads softmax_j(q·k_j/√d_h) v_j,    z ← z + W_out relu(W_in z),    logits = U z

with z = E_token + P_position at first. In the last layer only "=" asks. In the first layer q, k and v depend on token
and place only, not on the pair: with one layer q·k and v are computed for the 2V + 1 of them and looked up, so that a
pair costs its softmax, W_O and the MLP.

Without norm, (E, P)×κ, (W_Q, W_K)/κ, U/κ leaves the function as it is: the stream is κ times as large, scores and
logits are the same. So do (W_Q, W_K), (W_V, W_O) and (W_in, W_out) ×(κ, 1/κ). With each symmetry goes a quantity that
gradient flow conserves (`charges`). AdamW conserves none of them: its decay forgets norms within 1/(lr·decay) steps.

What follows the paper (Anguita et al. 2026, arXiv 2602.20062) is the question: does lower balancedness between early
and late layers help? Net, optimizer and all constants are our choice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from labkit import training
from labkit.training import SGD, Adam, Params, PerNet, accuracy, linear, normal
from labkit.transfer.arithmetic import addition, split
from labkit.transfer.protocol import new_readout
from labkit.validate import require_positive, require_whole

EPS = 1e-5  # of the norm
LR, DECAY, BETAS = 5e-3, 1.0, (0.9, 0.98)  # of AdamW
READOUT_STD = 0.3  # of a new unembedding, times 1/√width
WEIGHTS, READOUT, SPLIT, NEW_SPLIT = range(4)  # what a seed is used for


def streams(seeds: Sequence[int], purpose: int) -> list[torch.Generator]:
    """One generator a seed, another one for each purpose."""
    return training.generators([10 * int(seed) + 700_000 + purpose for seed in seeds])


@dataclass(frozen=True)
class Transformer:
    """The shape of a net; its weights are a dict of tensors (net, ...) apart from it.

    Fields
        vocabulary: V tokens 0 … V−1, and one more for "="
        width, heads, hidden, layers: d, a multiple of the heads; of the MLP; number of layers
        norm: False, or True for a norm (mean 0, variance 1 over the width, no gains) before each attention, each MLP
            and the unembedding

    Weights: "embed" (V + 1, d), "position" (3, d), "unembed" (class, d), and of layer l "query.l", "key.l", "value.l",
    "output.l" (d, d), "in.l" (hidden, d), "out.l" (d, hidden). Raises ValueError or TypeError for a bad shape.

    >>> net = Transformer(vocabulary=10)
    >>> params = net.initial(5, training.generators(range(3)))
    >>> net(params, addition(5, vocabulary=10)[0]).shape
    torch.Size([3, 100, 5])
    """

    vocabulary: int = 30
    width: int = 32
    heads: int = 4
    hidden: int = 128
    layers: int = 1
    norm: bool = False

    def __post_init__(self) -> None:
        require_whole(2, vocabulary=self.vocabulary)
        require_whole(1, width=self.width, heads=self.heads, hidden=self.hidden, layers=self.layers)
        if self.width % self.heads:
            raise ValueError(f"heads must divide the width, got {self.heads} heads and width {self.width}")
        if not isinstance(self.norm, bool):
            raise TypeError(f"norm must be True or False, got {self.norm!r}")

    def initial(self, n_classes: int, generators: Sequence[torch.Generator], gain: float = 1.0, **place) -> Params:
        """Weights by one generator a net: E, P ~ N(0, 1), matrices ~ N(0, gain²/fan_in). ``place``: device, dtype.

        gain = 1/√3 has the variance of ``torch.nn.Linear``. Raises ValueError unless gain > 0.
        """
        require_whole(2, n_classes=n_classes)
        require_positive(gain=torch.as_tensor(gain, dtype=torch.float64, device="cpu"))
        d, m = self.width, self.hidden
        shapes = {"embed": (self.vocabulary + 1, d), "position": (3, d)}
        for layer in range(self.layers):
            shapes |= {f"{name}.{layer}": (d, d) for name in ("query", "key", "value", "output")}
            shapes |= {f"in.{layer}": (m, d), f"out.{layer}": (d, m)}
        shapes["unembed"] = (n_classes, d)
        stds = {
            name: 1.0 if name in ("embed", "position") else gain * shape[1] ** -0.5 for name, shape in shapes.items()
        }
        return {name: normal(shape, generators, stds[name], **place) for name, shape in shapes.items()}

    def __call__(self, params: Params, pairs: Tensor) -> Tensor:
        """Logits (net, n, class) for pairs of tokens (n, 2), shared by the nets, or (net, n, 2)."""
        return torch.bmm(params["unembed"], self.features(params, pairs).mT).mT  # class by class: see `loss`

    def features(self, params: Params, pairs: Tensor) -> Tensor:
        """What the unembedding reads: the stream at "=" after the last layer (net, n, d)."""
        embed, position = params["embed"], params["position"]
        rows = self._rows(pairs, len(embed))
        tokens, equals = embed[:, :-1], embed[:, -1:]
        # (net, 2V + 1, d): every token in first place, every token in second place, "="
        z = torch.cat([tokens + position[:, :1], tokens + position[:, 1:2], equals + position[:, 2:]], 1)
        if self.layers == 1:
            return self._normed(self._mlp(params, self._read_tokens(params, z, rows), 0))
        every = torch.cat([rows, torch.full_like(rows[..., :1], 2 * self.vocabulary)], -1)
        z = _look_up(z, every)  # (net, n, 3, d)
        for layer in range(self.layers):
            z = self._mlp(params, self._attend(params, z, layer, only_equals=layer == self.layers - 1), layer)
        return self._normed(z[:, :, 0])

    def _read_tokens(self, params: Params, z: Tensor, rows: Tensor) -> Tensor:
        """Attention of "=" in the first layer, where z (net, 2V + 1, d) knows no pairs yet: (net, n, d)."""
        d, heads = self.width, (self.heads, self.width // self.heads)
        normed = self._normed(z)
        q = linear(normed[:, -1:], params["query.0"]) / math.sqrt(heads[1])
        scores = (linear(normed, params["key.0"]) * q).unflatten(2, heads).sum(3)  # (net, 2V + 1, head)
        table = torch.cat([linear(normed, params["value.0"]), scores], 2)
        first, second = _look_up(table[:, :-1], rows).unbind(2)  # (net, n, d + head)
        equals = table[:, -1:].expand_as(first)
        seen = (first, second, equals)
        share = torch.stack([each[..., d:] for each in seen], 3).softmax(3)  # (net, n, head, 3)
        v = [each[..., :d].unflatten(2, heads) for each in seen]  # (net, n, head, d_h)
        mixed = share[..., 2:] * v[2]
        for place in (0, 1):
            mixed = torch.addcmul(mixed, share[..., place : place + 1], v[place])
        return z[:, -1:] + linear(mixed.flatten(2), params["output.0"])

    def _attend(self, params: Params, z: Tensor, layer: int, only_equals: bool) -> Tensor:
        """z + attention over the three places of z (net, n, 3, d); ``only_equals``: (net, n, 1, d)."""
        heads = self.heads, self.width // self.heads
        normed, asking = self._normed(z), slice(2, 3) if only_equals else slice(None)

        def project(part: Tensor, name: str) -> Tensor:
            return _linear(part, params[f"{name}.{layer}"]).unflatten(3, heads).transpose(2, 3)

        q = project(normed[:, :, asking], "query") / math.sqrt(heads[1])
        k, v = project(normed, "key"), project(normed, "value")  # (net, n, head, 3, d_h)
        mixed = (q @ k.mT).softmax(4) @ v
        return z[:, :, asking] + _linear(mixed.transpose(2, 3).flatten(3), params[f"output.{layer}"])

    def _mlp(self, params: Params, z: Tensor, layer: int) -> Tensor:
        inner = _linear(self._normed(z), params[f"in.{layer}"]).relu_()  # in place: memory is what a step waits for
        return z + _linear(inner, params[f"out.{layer}"])

    def _normed(self, z: Tensor) -> Tensor:
        return functional.layer_norm(z, z.shape[-1:], eps=EPS) if self.norm else z

    def _rows(self, pairs: Tensor, n_nets: int) -> Tensor:
        """Rows of the table of tokens and places: (n, 2) or (net, n, 2), the second token V further on."""
        good = isinstance(pairs, Tensor) and pairs.dtype == torch.int64 and pairs.dim() in (2, 3)
        if not good or pairs.shape[-1] != 2 or pairs.shape[:-2] not in ((), (n_nets,)):
            found = f"{pairs.dtype} {tuple(pairs.shape)}" if isinstance(pairs, Tensor) else repr(pairs)
            raise ValueError(f"pairs must be int64 (n, 2) or ({n_nets}, n, 2), got {found}")
        if pairs.device.type == "cpu" and pairs.numel() and not 0 <= pairs.min() <= pairs.max() < self.vocabulary:
            raise ValueError(
                f"pairs must hold tokens from 0 to {self.vocabulary - 1}, got {pairs.min()} to {pairs.max()}"
            )
        return torch.stack([pairs[..., 0], pairs[..., 1] + self.vocabulary], -1)


def _linear(z: Tensor, weight: Tensor) -> Tensor:
    """`linear` of z (net, ..., d)."""
    return linear(z.flatten(1, -2), weight).unflatten(1, z.shape[1:-1])


def _look_up(table: Tensor, rows: Tensor) -> Tensor:
    """Rows (n, place) or (net, n, place) of each net's table (net, row, c): (net, n, place, c)."""
    nets, n_rows, _ = table.shape
    rows = rows.expand(nets, *rows.shape[-2:])
    flat = rows + n_rows * torch.arange(nets, device=rows.device)[:, None, None]
    return table.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, rows.shape)  # its backward is the fastest


# --- Rescalings, what gradient flow conserves, balancedness ------------------------------------------------------


def rescale(params: Params, kappa: PerNet, pair: str = "stream", norm: bool = False) -> Params:
    """The same function with other norms: a new dict of weights, for κ > 0, a number or (net,).

    ============  ===================================================================================================
    ``pair``      what is multiplied
    ============  ===================================================================================================
    ``stream``    E, P by κ; W_Q, W_K and U by 1/κ: early against late layers
    ``query``     W_Q by κ, W_K by 1/κ
    ``value``     W_V by κ, W_O by 1/κ
    ``mlp``       W_in by κ, W_out by 1/κ
    ============  ===================================================================================================

    With ``norm`` each norm undoes the scale of the stream: "stream" then is E, P, W_O and W_out by κ, exact but for the
    eps of the norm, and only the rate of learning changes. Derived here. Raises ValueError for another pair or κ ≤ 0.

    >>> net, pairs = Transformer(vocabulary=6), addition(5, vocabulary=6)[0]
    >>> params = net.initial(5, training.generators([0]))
    >>> other = rescale(params, 3.0)
    >>> torch.allclose(net(other, pairs), net(params, pairs)), (other["embed"] / params["embed"])[0, 0, 0]
    (True, tensor(3., dtype=torch.float64))
    """
    powers = _powers(params, pair, norm)
    kappa = torch.as_tensor(kappa, dtype=params["embed"].dtype, device=params["embed"].device)
    if kappa.shape not in ((), (len(params["embed"]),)):
        raise ValueError(f"kappa must be a number or ({len(params['embed'])},), one per net, got {tuple(kappa.shape)}")
    require_positive(kappa=kappa)
    return {name: value * kappa.view(-1, 1, 1) ** powers.get(name, 0) for name, value in params.items()}


def charges(params: Params, norm: bool = False) -> dict[str, Tensor]:
    """What gradient flow conserves, one for each ``pair`` of `rescale`: Σ power·‖W‖²_F, (net,).

    "stream": ‖E‖² + ‖P‖² − Σ_l(‖W_Q‖² + ‖W_K‖²) − ‖U‖²; "mlp": Σ_l(‖W_in‖² − ‖W_out‖²); and so on. Along a rescaling
    the loss does not change, so the gradient is orthogonal to it: d/dt Σ power·‖W‖² = 0 (derived here). `balancedness`
    is not conserved itself: it leaves out P, W_Q and W_K.

    >>> params = Transformer(vocabulary=6).initial(5, training.generators([0]))
    >>> sorted(charges(params))
    ['mlp', 'query', 'stream', 'value']
    """
    sizes = {name: value.square().sum((1, 2)) for name, value in params.items()}
    return {
        pair: sum(power * sizes[name] for name, power in _powers(params, pair, norm).items())
        for pair in ("stream", *INNER)
    }


def balancedness(params: Params) -> Tensor:
    """λ_EU = (‖E‖² − ‖U‖²)/(‖E‖² + ‖U‖²) of embedding and unembedding (net,): 1 all early, −1 all late.

    Say of which moment it is: AdamW with decay forgets it while it learns.

    >>> balancedness({"embed": 3 * torch.ones(1, 2, 2), "unembed": torch.ones(1, 2, 2)})
    tensor([0.8000])
    """
    early, late = (params[name].square().sum((1, 2)) for name in ("embed", "unembed"))
    return (early - late) / (early + late)


INNER = {"query": ("query", "key"), "value": ("value", "output"), "mlp": ("in", "out")}


def _powers(params: Params, pair: str, norm: bool) -> dict[str, int]:
    """The power of κ by which each weight is multiplied; 0 where it is not named."""
    if pair != "stream" and pair not in INNER:
        raise ValueError(f"pair must be one of stream, {', '.join(INNER)}, got {pair!r}")
    kinds = {name: name.split(".")[0] for name in params}
    if pair in INNER:
        signs = dict(zip(INNER[pair], (1, -1), strict=True))
    elif norm:
        signs = dict.fromkeys(("embed", "position", "output", "out"), 1)
    else:
        signs = {"embed": 1, "position": 1, "query": -1, "key": -1, "unembed": -1}
    return {name: signs[kind] for name, kind in kinds.items() if kind in signs}


# --- Learning to add ---------------------------------------------------------------------------------------------


def loss(out: Tensor, y: Tensor) -> Tensor:
    """`labkit.training.cross_entropy`, faster for what `Transformer` gives, which lies in memory class by class.

    >>> loss(torch.zeros(2, 3, 10), torch.zeros(2, 3, dtype=torch.int64))
    tensor([2.3026, 2.3026])
    """
    y = y.expand(out.shape[:2])
    return functional.cross_entropy(out.mT, y, reduction="none").mean(1)


@dataclass(frozen=True, eq=False)
class Learned:
    """One phase of learning to add, for each net.

    Fields
        start, params: weights before and after
        recorded: (record,), int64, steps after which was looked; 0 and the last one included
        accuracy: (record, net), on the pairs that were held out
        loss: (net,), training loss at the end
        diverged: (net,), bool; its accuracy counts as it is, so drop it
    """

    start: Params
    params: Params
    recorded: Tensor
    accuracy: Tensor
    loss: Tensor
    diverged: Tensor

    def steps_to(self, level: float = 0.9) -> Tensor:
        """First recorded step with this accuracy or more, (net,) floating, nan where there is none."""
        return steps_to(self.recorded, self.accuracy, level)


def steps_to(recorded: Tensor, accuracy: Tensor, level: float = 0.9) -> Tensor:
    """First recorded step (record,) at which accuracy (record, ...) is ``level`` or more: (...), nan where it never is.

    >>> steps_to(torch.tensor([0, 10, 20]), torch.tensor([[0.1, 0.1], [0.5, 0.2], [0.95, 0.3]]))
    tensor([20., nan])
    """
    if not 0 <= level <= 1:
        raise ValueError(f"level must lie in [0, 1], got {level}")
    there = accuracy >= level
    step = recorded.to(accuracy)[there.to(torch.uint8).argmax(0)]
    return torch.where(there.any(0), step, torch.nan)


def learn(
    net: Transformer,
    params: Params,
    modulus: int,
    fraction: float,
    generators: Sequence[torch.Generator],
    steps: int,
    optimizer: SGD | Adam | None = None,
    record_every: int = 25,
    tick: Callable[[], object] | None = None,
) -> Learned:
    """Full-batch training on a share of all pairs, which each net chooses by its generator, tested on the others.

    optimizer: by default AdamW with rate `LR`, decay `DECAY` and `BETAS`; ``SGD`` with a small rate conserves `charges`
    instead. A net whose weights are not finite, because it diverged before, has diverged again: nan, and the others go
    on. tick: called at each record, for a bar. ``params["unembed"]`` has one row for each residue, else
    ValueError.

    >>> net = Transformer(vocabulary=6, width=8, hidden=16)
    >>> params = net.initial(5, training.generators(range(2)))
    >>> learn(net, params, 5, 0.6, training.generators(range(2)), steps=50).accuracy.shape
    torch.Size([3, 2])
    """
    embed, n_classes = params["embed"], params["unembed"].shape[1]
    if n_classes != modulus:
        raise ValueError(f"modulus must be {n_classes}, the number of rows of unembed, got {modulus}")
    pairs, labels = addition(modulus, net.vocabulary, embed.device)
    train, test = (part.to(embed.device) for part in split(len(pairs), fraction, generators))
    optimizer = Adam(LR, betas=BETAS, weight_decay=DECAY) if optimizer is None else optimizer
    x, y = pairs[test], labels[test]

    def held_out(now: Params) -> Tensor:
        if tick is not None:
            tick()
        return 1 - accuracy(net(now, x), y)

    good = torch.stack([value.isfinite().flatten(1).all(1) for value in params.values()]).all(0)
    run = training.train(
        net,
        {name: torch.where(good.view(-1, 1, 1), value, 0) for name, value in params.items()},
        pairs[train],
        labels[train],
        optimizer,
        steps,
        loss=loss,
        per_net=True,
        validate=held_out,
        record_every=record_every,
    )
    after = {name: torch.where(good.view(-1, 1, 1), value, torch.nan) for name, value in run.params.items()}
    held = torch.where(good, 1 - run.validation, torch.nan)
    return Learned(params, after, run.recorded, held, torch.where(good, run.loss[-1], torch.nan), run.diverged | ~good)


def start_fine_tuning(params: Params, modulus: int, seeds: Sequence[int], std: float = READOUT_STD) -> Params:
    """The weights with a new unembedding ~ N(0, std²/width), by seed, for another modulus.

    >>> params = Transformer(vocabulary=6).initial(5, training.generators([0]))
    >>> start_fine_tuning(params, 3, [0])["unembed"].shape
    torch.Size([1, 3, 32])
    """
    require_whole(2, modulus=modulus)
    return params | {"unembed": new_readout(params["unembed"], std, streams(seeds, READOUT), n_out=modulus)}
