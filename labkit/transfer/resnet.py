"""Residual networks on images, many seeds and scales as one: without a norm, or with batch norm.

    z = relu(stem * x);   block: z ← relu(second * relu(first * z) + shortcut(z));   f(x) = W · mean of z over pixels

All convolutions are without biases. Without a norm f is 1-homogeneous in the stem, so `rescale` moves scale between
the stem and the readout and leaves the function as it was: a pure relative scale. With batch norm, which follows
every convolution, a factor κ of a convolution changes nothing but its learning rate: f(κw) = f(w), ∇f(κw) = ∇f(w)/κ.
The networks are toys and a standard shape (ResNet-18, arXiv 1512.03385, with a 3 × 3 stem): the configuration that
arXiv 2602.20062 used is not known to us.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from labkit import compute
from labkit.training import Params, PerNet, conv2d, he, linear, normal, to_nets
from labkit.validate import refuse, require_positive, require_whole

NORMS = (None, "batch")
EPS = 1e-5  # of batch norm


@dataclass(frozen=True)
class ResNet:
    """The shape of a network; the weights are a dict of tensors (net, ...), which `init` draws.

    Arguments
        channels: of each stage; the stem has as many as the first. A stage after the first halves the image
        blocks: in each stage, ≥ 1
        in_channels: of the image
        norm: None or "batch", after every convolution
        branch_std: weights of ``second`` and ``shortcut`` in units of He's standard deviation; the others have 1

    Weights are named "stem", "S.B.first", "S.B.second", "S.B.shortcut" (1 × 1, where channels or size change) for
    stage S and block B, both from 1, and "readout"; with batch norm each convolution NAME has "NAME.gain" and
    "NAME.bias". Raises ValueError or TypeError for what is no such shape.

    >>> from labkit import training
    >>> params = SMALL.init(n_classes=28, generators=training.generators(range(3)))
    >>> SMALL.forward(params, torch.ones(5, 1, 8, 8, dtype=torch.float64)).shape
    torch.Size([3, 5, 28])
    >>> sum(weight[0].numel() for weight in params.values())
    20040
    """

    channels: tuple[int, ...] = (8, 16, 32)
    blocks: int = 1
    in_channels: int = 1
    norm: str | None = None
    branch_std: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.channels, tuple) or not self.channels:
            raise TypeError(f"channels must be a tuple of one number or more, got {self.channels!r}")
        require_whole(1, **{f"channels[{i}]": width for i, width in enumerate(self.channels)})
        require_whole(1, blocks=self.blocks, in_channels=self.in_channels)
        if self.norm not in NORMS:
            raise ValueError(f"norm must be None or 'batch', got {self.norm!r}")
        if not 0 < self.branch_std < math.inf:
            raise ValueError(f"branch_std must lie in (0, inf), got {self.branch_std}")

    @property
    def width(self) -> int:
        """Channels of the last stage: what the readout sees."""
        return self.channels[-1]

    def convolutions(self) -> Iterator[tuple[str, tuple[int, int, int, int], float]]:
        """Name, shape (out, in, k, k) and standard deviation (in units of He's) of each, from the image on."""
        yield "stem", (self.channels[0], self.in_channels, 3, 3), 1.0
        for name, n_in, n_out, stride in self._blocks():
            yield f"{name}.first", (n_out, n_in, 3, 3), 1.0
            yield f"{name}.second", (n_out, n_out, 3, 3), self.branch_std
            if n_in != n_out or stride > 1:
                yield f"{name}.shortcut", (n_out, n_in, 1, 1), self.branch_std

    def init(
        self,
        n_classes: int,
        generators: Sequence[torch.Generator],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Params:
        """Weights of as many nets as there are generators: convolutions He, readout N(0, 1/width), gains 1, biases 0.

        Device and dtype: by default those of ``labkit.compute``. ValueError for n_classes < 2.
        """
        require_whole(2, n_classes=n_classes)
        place = {"device": device, "dtype": dtype}
        params = {name: std * he(shape, generators, **place) for name, shape, std in self.convolutions()}
        params["readout"] = normal((n_classes, self.width), generators, self.width**-0.5, **place)
        if self.norm:
            for name, (n_out, *_), _ in self.convolutions():
                params[f"{name}.gain"] = params["readout"].new_ones(len(generators), n_out)
                params[f"{name}.bias"] = params["readout"].new_zeros(len(generators), n_out)
        return params

    def forward(self, params: Params, x: Tensor, statistics: Params | None = None) -> Tensor:
        """Logits (net, batch, class): what ``labkit.training.train`` wants.

        x: images (batch, channels, height, width), shared by the nets, or (net, batch, channels, height, width).
        statistics, for batch norm: None to norm by mean and variance of this batch, or those of `statistics`, which
        stay as they are. Raises ValueError for images that do not fit, TypeError for what is no tensor of the dtype of
        the weights.
        """
        return linear(self.features(params, x, statistics), params["readout"])

    def features(self, params: Params, x: Tensor, statistics: Params | None = None) -> Tensor:
        """What the readout sees: the last stage's means over pixels, (net, batch, width); arguments of `forward`."""
        return to_nets(self._run(params, x, statistics), len(params["readout"]))

    def statistics(self, params: Params, x: Tensor, batch: int | None = None) -> Params:
        """Running statistics of batch norm: for each convolution NAME means and variances (net, 2, channels).

        They are averaged over batches, of ``batch`` samples at most and as equal as can be, of all samples of x
        (net, n, ...) or (n, ...) in a random order, always the same one: samples may come sorted by class, and a batch
        must not be of one class. None: all n at once. This is what `torch.nn.BatchNorm2d` with ``momentum=None``
        collects, for the weights as they are now; the usual exponential mean lags behind them. The variance is the
        unbiased one. Raises ValueError without batch norm, and unless 1 ≤ batch ≤ n.
        """
        if not self.norm:
            raise ValueError("a network with norm=None has no statistics, only one with norm='batch'")
        self._admit(params, x)
        axis = x.dim() - 4  # of the samples
        n = x.shape[axis]
        require_whole(1, batch=n if batch is None else batch)
        if batch is not None and batch > n:
            raise ValueError(f"batch must lie in [1, {n}], the number of samples, got {batch}")
        total: Params = {}
        parts = torch.randperm(n, generator=compute.generator(0), device="cpu").tensor_split(-(-n // (batch or n)))
        with torch.no_grad():
            for part in parts:
                found: Params = {}
                self._run(params, x if len(parts) == 1 else x.index_select(axis, part.to(x.device)), None, found)
                total = {name: total.get(name, 0) + value * (len(part) / n) for name, value in found.items()}
        return total

    def _blocks(self) -> Iterator[tuple[str, int, int, int]]:
        """Name, channels in and out, and stride of each block."""
        n_in = self.channels[0]
        for stage, n_out in enumerate(self.channels, 1):
            for block in range(1, self.blocks + 1):
                yield f"{stage}.{block}", n_in, n_out, 2 if stage > 1 and block == 1 else 1
                n_in = n_out

    def _run(self, params: Params, x: Tensor, statistics: Params | None, found: Params | None = None) -> Tensor:
        """(batch, net·width): features before `to_nets`; the statistics of the batch are written into ``found``."""

        def layer(z: Tensor, name: str, stride: int = 1) -> Tensor:
            weight = params[name]
            z = conv2d(z, weight, stride=stride, padding=weight.shape[-1] // 2)
            if not self.norm:
                return z
            gain, bias = params[f"{name}.gain"].flatten(), params[f"{name}.bias"].flatten()
            if found is not None:
                both = torch.stack(torch.var_mean(z, (0, 2, 3))[::-1])  # (2, net·channels)
                found[name] = both.unflatten(1, (len(weight), -1)).transpose(0, 1)
            if statistics is None:
                return functional.batch_norm(z, None, None, gain, bias, training=True, eps=EPS)
            mean, var = (part.flatten() for part in statistics[name].unbind(1))
            return functional.batch_norm(z, mean, var, gain, bias, eps=EPS)

        self._admit(params, x)
        x = x if x.dim() == 4 else x.transpose(0, 1).flatten(1, 2)
        z = layer(x.contiguous(memory_format=torch.channels_last), "stem").relu()  # a fifth faster, on a CPU too
        for name, n_in, n_out, stride in self._blocks():
            branch = layer(layer(z, f"{name}.first", stride).relu(), f"{name}.second")
            shortcut = layer(z, f"{name}.shortcut", stride) if n_in != n_out or stride > 1 else z
            z = (branch + shortcut).relu()
        return z.mean((2, 3))

    def _admit(self, params: Params, x: Tensor) -> None:
        """Refuse what are no images of these nets."""
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        if x.dtype != params["stem"].dtype:
            raise TypeError(f"x is {x.dtype} but params are {params['stem'].dtype}: use one dtype")
        n_nets = len(params["stem"])
        if x.dim() not in (4, 5) or x.shape[-3] != self.in_channels or (x.dim() == 5 and len(x) != n_nets):
            images = f"{self.in_channels}, height, width)"
            raise ValueError(f"x must be (batch, {images} or ({n_nets}, batch, {images}, got {tuple(x.shape)}")


SMALL = ResNet(branch_std=0.7)  # 20 k weights, for 8 × 8 images: ours
SMALL_BATCH_NORM = ResNet(norm="batch")
RESNET18 = ResNet((64, 128, 256, 512), blocks=2, in_channels=3, norm="batch")  # 11 M, for 32 × 32 images


def rescale(params: Params, kappa: PerNet, weight_scale: PerNet = 1.0) -> Params:
    """Stem × κ·weight_scale, readout × weight_scale/κ; the other weights are the same tensors.

    Without a norm f becomes weight_scale²·f: κ alone leaves the function as it was (derived here: f is 1-homogeneous
    in the stem). For two factors of equal size at κ = 1 the relative scale λ is (κ² − κ⁻²)/(κ² + κ⁻²): κ < 1 is a
    small first layer, λ < 0. Numbers or (net,); ValueError unless both are > 0.

    >>> params = SMALL.init(28, [torch.Generator().manual_seed(0)])
    >>> x = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    >>> bool((SMALL.forward(rescale(params, 0.2), x) / SMALL.forward(params, x) - 1).abs().max() < 1e-12)
    True
    """
    kappa, weight_scale = _factor("kappa", kappa, params), _factor("weight_scale", weight_scale, params)
    new = {"stem": params["stem"] * (kappa * weight_scale)[:, None, None, None, None]}
    return params | new | {"readout": params["readout"] * (weight_scale / kappa)[:, None, None]}


def rescale_convolutions(net: ResNet, params: Params, kappa: PerNet) -> Params:
    """Convolutions of the stem and of all stages but the last × κ, those of the last × 1/κ; with batch norm only.

    f stays as it is, up to the eps of batch norm; the gradient of what became κ times larger becomes κ times smaller,
    so one step of gradient descent turns these weights κ² times less: a learning-rate effect (derived here). That is
    all of it for SGD, momentum included, at one rate: what learns at rate η after κ learns as before it at η/κ² and, in
    the last stage, ηκ². A clip, one factor for all weights of a net, is not part of that: where κ makes some gradients
    exceed it, all weights slow down. The network needs two stages at least. Number or (net,); ValueError unless > 0.

    >>> params = SMALL_BATCH_NORM.init(28, [torch.Generator().manual_seed(0)])
    >>> new = rescale_convolutions(SMALL_BATCH_NORM, params, 10.0)
    >>> [bool(torch.allclose(new[name], c * params[name])) for name, c in (("stem", 10), ("3.1.first", 0.1))]
    [True, True]
    """
    if not net.norm or len(net.channels) < 2:
        raise ValueError(f"net must have norm='batch' and two stages or more, got {net}")
    kappa = _factor("kappa", kappa, params)[:, None, None, None, None]
    last = f"{len(net.channels)}."
    names = [name for name, *_ in net.convolutions()]
    return params | {name: params[name] / kappa if name.startswith(last) else params[name] * kappa for name in names}


def match_norms(net: ResNet, params: Params, like: Params) -> Params:
    """Every convolution scaled to the Frobenius norm that it has in ``like``; with batch norm only.

    f stays as it is, up to eps, and so does every direction w/‖w‖; the angular speed of gradient descent, lr/‖w‖²,
    becomes that of ``like``: a matched learning rate (derived here). Raises ValueError without batch norm, and for a
    convolution that is zero.

    >>> params = SMALL_BATCH_NORM.init(28, [torch.Generator().manual_seed(0)])
    >>> back = match_norms(SMALL_BATCH_NORM, rescale_convolutions(SMALL_BATCH_NORM, params, 10.0), params)
    >>> all(torch.allclose(back[name], params[name]) for name in params)
    True
    """
    if not net.norm:
        raise ValueError(f"net must have norm='batch', got {net}")
    new = dict(params)
    for name, *_ in net.convolutions():
        norm = params[name].flatten(1).norm(dim=1)
        refuse(f"norm of {name}", norm, norm > 0, "must be > 0")
        new[name] = params[name] * (like[name].flatten(1).norm(dim=1) / norm)[:, None, None, None, None]
    return new


def _factor(name: str, value: PerNet, params: Params) -> Tensor:
    """A number or (net,) as (net,), > 0."""
    like = params["readout"]
    try:
        value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError):  # a text, None, a ragged list
        raise TypeError(f"{name} must be a number or ({len(like)},), one per net, got {value!r}") from None
    if value.shape not in ((), like.shape[:1]):
        raise ValueError(f"{name} must be a number or ({len(like)},), one per net, got {tuple(value.shape)}")
    require_positive(**{name: value})
    return value.expand(len(like))
