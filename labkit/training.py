"""Many small nets trained as one: every tensor has a leading net axis, one step moves all nets.

A net is a function ``forward(params, x) -> (net, batch, out)`` of ``params``, a dict of tensors (net, ...). The
loss is one number per net and their sum is differentiated, so gradients never mix. Inside `train` all parameters
are one matrix (net, n_params): an optimizer, a clip or a mask is then a handful of operations, whatever the net.

    >>> g = generators(range(32))  # 32 nets with 20 inputs, 48 hidden ReLU units, 1 output and biases
    >>> params = {"w0": he((48, 20), g), "b0": normal((48,), g, 0.1), "w1": he((1, 48), g), "b1": normal((1,), g, 0.1)}
    >>> def forward(p, x):
    ...     return linear(linear(x, p["w0"], p["b0"]).relu(), p["w1"], p["b1"])
    >>> x = normal((80, 20), generators([100]))[0]  # (80, 20)
    >>> run = train(forward, params, x, x[:, :1] * x[:, 1:2], Adam(0.01), steps=100)
    >>> run.loss.shape, bool((run.loss[-1] < run.loss[0]).all())
    (torch.Size([2, 32]), True)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor
from torch.nn import functional
from tqdm.auto import tqdm

from labkit import compute
from labkit.validate import refuse, require_finite, require_positive

Params = dict[str, Tensor]
PerNet = float | Tensor  # one number for all nets, or (net,)
Rate = PerNet | Callable[[int, Params], PerNet]

LOOK_EVERY = 10  # steps between two looks at how many nets still move: a look makes a GPU wait


# --- Layers: weights as in torch.nn with a net axis in front ---------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One dense layer of every net, x·Wᵀ + b, as one batched product.

    x (batch, in), shared by the nets, or (net, batch, in); weight (net, out, in); bias (net, out) → (net, batch,
    out). Raises ValueError when they do not fit.

    >>> linear(torch.ones(5, 3), torch.ones(2, 4, 3), torch.zeros(2, 4)).shape
    torch.Size([2, 5, 4])
    """
    n_nets, n_out, n_in = _weight_shape(x, weight, 3, "(net, out, in)")
    if x.dim() not in (2, 3) or x.shape[-1] != n_in or x.shape[:-2] not in ((), (n_nets,)):
        _misfit("x", x, f"(batch, {n_in}) or ({n_nets}, batch, {n_in})", weight)
    if bias is not None and bias.shape != (n_nets, n_out):
        _misfit("bias", bias, f"({n_nets}, {n_out})", weight)
    x = x.expand(n_nets, *x.shape[-2:])
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0) -> Tensor:
    """One convolution of every net, as one grouped convolution: a group is a net.

    x (batch, net·in, height, width) as another layer left it, or images: (batch, in, height, width), shared by
    the nets, or (net, batch, in, height, width); weight (net, out, in, k, k); bias (net, out) → (batch, net·out,
    ...), which `to_nets` takes apart. Raises ValueError when they do not fit.

    >>> conv2d(torch.ones(5, 1, 8, 8), torch.ones(2, 4, 1, 3, 3), padding=1).shape
    torch.Size([5, 8, 8, 8])
    """
    n_nets, n_out, n_in, *_ = _weight_shape(x, weight, 5, "(net, out, in, k, k)")
    if x.dim() == 5 and x.shape[0] == n_nets:
        x = x.transpose(0, 1).flatten(1, 2)  # (batch, net·in, height, width)
    if x.dim() != 4 or x.shape[1] not in (n_in, n_nets * n_in):
        wanted = f"(batch, {n_in} or {n_nets * n_in}, height, width) or ({n_nets}, batch, {n_in}, height, width)"
        _misfit("x", x, wanted, weight)
    if bias is not None and bias.shape != (n_nets, n_out):
        _misfit("bias", bias, f"({n_nets}, {n_out})", weight)
    groups = x.shape[1] // n_in  # 1 where all nets see the same images
    bias = None if bias is None else bias.flatten()
    return functional.conv2d(x, weight.flatten(0, 1), bias, stride, padding, groups=groups)


def to_nets(x: Tensor, n_nets: int) -> Tensor:
    """(batch, net·channels, ...) as (net, batch, channels, ...): from convolutions to `linear`.

    >>> to_nets(torch.ones(5, 8, 4, 4).mean((2, 3)), n_nets=2).shape
    torch.Size([2, 5, 4])
    """
    if x.dim() < 2 or n_nets < 1 or x.shape[1] % n_nets:
        raise ValueError(f"x must be (batch, {n_nets}·channels, ...), got {tuple(x.shape)}")
    return x.unflatten(1, (n_nets, -1)).transpose(0, 1)


def _weight_shape(x: Tensor, weight: Tensor, dim: int, wanted: str) -> torch.Size:
    if not x.is_floating_point():
        raise TypeError(f"x must be a floating tensor, got {x.dtype}")
    if weight.dim() != dim:
        raise ValueError(f"weight must be {wanted}, got {tuple(weight.shape)}")
    return weight.shape


def _misfit(name: str, value: Tensor, wanted: str, weight: Tensor) -> None:
    raise ValueError(f"{name} must be {wanted} for weight {tuple(weight.shape)}, got {tuple(value.shape)}")


# --- Initial weights: one generator a net, so that a net does not depend on how many others there are -----------


def generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """One CPU generator a net, for the initializers and for the mini-batches of `train`."""
    return [compute.generator(seed) for seed in seeds]


def normal(
    shape: Sequence[int],
    generators: Sequence[torch.Generator],
    std: float = 1.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Weights (net, *shape) ~ N(0, std²), drawn on the CPU in float64, one generator a net, and moved.

    Device and dtype: by default those of ``labkit.compute``. Raises ValueError without generators, for std < 0 and for
    a device that this computer does not have; TypeError for a dtype that is not floating.

    >>> alone, three = normal((2, 2), generators([7])), normal((2, 2), generators([5, 6, 7]))
    >>> torch.equal(alone[0], three[2])
    True
    """
    if not generators:
        raise ValueError("generators must hold one generator a net, got none")
    if not 0 <= std < math.inf:
        raise ValueError(f"std must lie in [0, inf), got {std}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating dtype such as torch.float32, got {dtype!r}")
    device = compute.device() if device is None else compute.valid_device(device)
    draws = [torch.randn(*shape, generator=g, dtype=torch.float64, device="cpu") for g in generators]
    return std * torch.stack(draws).to(device, dtype or compute.dtype(device))


def he(shape: Sequence[int], generators: Sequence[torch.Generator], **place) -> Tensor:
    """`normal` weights of variance 2/fan_in, which keep the size of ReLU features (He et al., arXiv 1502.01852).

    shape (out, in) or (out, in, k, k); fan_in is the number of inputs of one output.

    >>> he((1000, 50), generators([0])).var() * 50
    tensor(2.0, dtype=torch.float64)
    """
    fan_in, _ = _fans(shape)
    return normal(shape, generators, math.sqrt(2 / fan_in), **place)


def xavier(shape: Sequence[int], generators: Sequence[torch.Generator], **place) -> Tensor:
    """`normal` weights of variance 2/(fan_in + fan_out) (Glorot and Bengio, AISTATS 2010); shape as for `he`.

    >>> xavier((1000, 50), generators([0])).var() * (1000 + 50)
    tensor(2.0, dtype=torch.float64)
    """
    return normal(shape, generators, math.sqrt(2 / sum(_fans(shape))), **place)


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) < 2 or min(shape) < 1:
        raise ValueError(f"shape must be (out, in) or (out, in, k, k), each >= 1, got {tuple(shape)}")
    n_out, n_in, *kernel = shape
    return n_in * math.prod(kernel), n_out * math.prod(kernel)


# --- Losses: one number per net --------------------------------------------------------------------------------


def mse(out: Tensor, y: Tensor) -> Tensor:
    """Mean squared error per net: out (net, batch, out), y (batch, out) or (net, batch, out) → (net,).

    >>> mse(torch.zeros(2, 3, 1), torch.ones(3, 1))
    tensor([1., 1.])
    """
    if y.shape not in (out.shape, out.shape[1:]):
        raise ValueError(f"y must be {tuple(out.shape[1:])} or {tuple(out.shape)} as the output, got {tuple(y.shape)}")
    return ((out - y) ** 2).flatten(1).mean(1)


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Mean of −ln softmax(out)_y per net, in nats: out (net, batch, class), y int64 (batch,) or (net, batch) → (net,).

    >>> cross_entropy(torch.zeros(2, 3, 10), torch.tensor([0, 5, 9]))
    tensor([2.3026, 2.3026])
    """
    y = _labels(out, y)
    options = {"reduction": "none", "ignore_index": torch.iinfo(y.dtype).min}  # -100, by default, would count as 0
    return functional.cross_entropy(out.flatten(0, 1), y.flatten(), **options).view(y.shape).mean(1)


def accuracy(out: Tensor, y: Tensor) -> Tensor:
    """Share of samples whose largest output is that of their class, per net; shapes as in `cross_entropy`.

    >>> accuracy(torch.eye(3).expand(2, 3, 3), torch.tensor([0, 1, 0]))
    tensor([0.6667, 0.6667])
    """
    return (out.argmax(-1) == _labels(out, y)).to(out.dtype).mean(1)


def _labels(out: Tensor, y: Tensor) -> Tensor:
    """y as (net, batch)."""
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.shape not in (out.shape[:2], out.shape[1:2]):
        expected = f"int64 of shape {tuple(out.shape[1:2])} or {tuple(out.shape[:2])}"
        raise ValueError(f"y must be {expected} for output {tuple(out.shape)}, got {y.dtype} {tuple(y.shape)}")
    if y.device.type == "cpu":  # elsewhere a look would make every step wait; CUDA has an assertion
        refuse("y", y, (y >= 0) & (y < out.shape[-1]), f"must be a class from 0 to {out.shape[-1] - 1}")
    return y.expand(out.shape[:2])


def gradients(
    forward: Callable[[Params, Tensor], Tensor],
    params: Params,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] = mse,
) -> tuple[Tensor, Params]:
    """The loss of each net (net,) and its gradient, named and shaped as ``params``, which are not changed.

    >>> x = torch.ones(3, 1)
    >>> loss, grad = gradients(lambda p, x: linear(x, p["w"]), {"w": torch.ones(2, 1, 1)}, x, 0 * x)
    >>> loss, grad["w"].flatten()
    (tensor([1., 1.]), tensor([2., 2.]))
    """
    own = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():  # wherever it is called
        each = loss(forward(own, x), y)
        slopes = torch.autograd.grad(each.sum(), list(own.values()))
    return each.detach(), dict(zip(own, slopes, strict=True))


# --- Optimizers: on parameters, gradients and state of shape (net, n_params) -------------------------------------


@dataclass(frozen=True)
class SGD:
    """θ ← θ − lr·b with b ← momentum·b + ∇L: ``torch.optim.SGD``.

    ``lr`` > 0 is a number, one per net (net,), or a function ``lr(step, params)`` that gives either; it may give 0.
    """

    lr: Rate
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _require_share(momentum=self.momentum)

    def start(self, theta: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros_like(theta),) if self.momentum else ()

    def change(self, theta: Tensor, grad: Tensor, state: tuple[Tensor, ...], lr: Tensor, step: int) -> Tensor:
        for velocity in state:
            grad = velocity.mul_(self.momentum).add_(grad)
        return -lr * grad


@dataclass(frozen=True)
class Adam:
    """Adam (arXiv 1412.6980); with ``weight_decay`` > 0 AdamW (arXiv 1711.05101): ``torch.optim.Adam``, ``.AdamW``.

    θ ← θ − lr·(m̂/(√v̂ + eps) + weight_decay·θ), m̂ and v̂ the bias-corrected running means of ∇L and (∇L)². The
    decay is decoupled: it is no part of the gradient. ``lr`` as in `SGD`.
    """

    lr: Rate
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, got {self.betas}")
        _require_share(**{f"betas[{i}]": beta for i, beta in enumerate(self.betas)})
        if not (0 <= self.eps < math.inf and 0 <= self.weight_decay < math.inf):
            raise ValueError(f"eps and weight_decay must lie in [0, inf), got {self.eps} and {self.weight_decay}")

    def start(self, theta: Tensor) -> tuple[Tensor, ...]:
        return torch.zeros_like(theta), torch.zeros_like(theta)

    def change(self, theta: Tensor, grad: Tensor, state: tuple[Tensor, ...], lr: Tensor, step: int) -> Tensor:
        (mean, square), (beta1, beta2) = state, self.betas
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        size = square.sqrt().div_(math.sqrt(1 - beta2 ** (step + 1))).add_(self.eps)
        change = (mean / (1 - beta1 ** (step + 1))).div_(size)
        return -lr * (change.add_(theta, alpha=self.weight_decay) if self.weight_decay else change)


def _require_above_zero(**named: Tensor) -> None:
    for name, value in named.items():
        refuse(name, value, value > 0, "must be > 0")


def _require_share(**named: float) -> None:
    for name, value in named.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value}")


# --- Training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """What `train` did to each net. A net that diverged is a result, not an error: see ``diverged``.

    Fields
        params: where each net ended
        best: where its loss (with ``validate``: its validation loss) was least, among the recorded steps
        best_loss: (net,), that loss
        recorded: (record,), int64, the numbers of steps after which was recorded
        loss: (record, net), running training loss
        validation: (record, net), or None without ``validate``
        steps: (net,), int64, steps taken until stopped, diverged or all done
        stopped: (net,), bool, reached its stop loss
        diverged: (net,), bool, the loss after ``steps`` was not finite, or above ``max_loss``
    """

    params: Params
    best: Params
    best_loss: Tensor
    recorded: Tensor
    loss: Tensor
    validation: Tensor | None
    steps: Tensor
    stopped: Tensor
    diverged: Tensor

    def __str__(self) -> str:
        steps, lost = self.steps.tolist(), self.diverged.nonzero().flatten().tolist()
        line = f"{len(steps)} nets, {min(steps)} to {max(steps)} steps, {int(self.stopped.sum())} reached the stop loss"
        return line + "".join(f"; net {net} diverged at step {steps[net]}" for net in lost)


def train(
    forward: Callable[[Params, Tensor], Tensor],
    params: Params,
    x: Tensor,
    y: Tensor,
    optimizer: SGD | Adam,
    steps: int,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = mse,
    per_net: bool = False,
    batch: int | None = None,
    generators: torch.Generator | Sequence[torch.Generator] | None = None,
    stop_loss: PerNet | None = None,
    max_loss: PerNet = math.inf,
    clip: PerNet | None = None,
    validate: Callable[[Params], Tensor] | None = None,
    record_every: int | None = None,
    autocast: torch.dtype | None = None,
    progress: bool = False,
) -> Trained:
    """Train all nets for ``steps`` steps, each as if it were alone; ``params`` is not changed.

    Arguments
        forward: (params, x) → (net, batch, out); net i may use the i-th slices only
        params: tensors (net, ...), float32 or float64, all on the device to train on
        x, y: n samples for all nets (n, ...), or with ``per_net`` (net, n, ...) each
        loss: (out, y) → (net,), such as `mse` or `cross_entropy`
        batch: samples a step, of a fresh random order every epoch (a rest smaller than a batch waits for the
            next order); None: all n. ``generators`` then says who sees what: one CPU generator for batches that
            all nets share, a list of them for one's own; with a list ``forward`` gets x (net, batch, ...). A
            generator that is used again goes on where it was: make a new one to see the same batches
        stop_loss: number or (net,): a net whose running loss is this or less moves no more, from the end of the
            first epoch on. The running loss is the mean over the first epoch, then an exponential mean over about
            one (rate batch/n); without ``batch`` it is the loss itself
        max_loss: number or (net,): a net whose loss exceeds this, or is not finite, has diverged and moves no more
        clip: number or (net,), > 0: largest norm of the gradient of a net
        validate: params → (net,), what ``best`` is judged by, less is better; called when recording
        record_every: steps between records; the start and the end are always recorded, and ``best`` is the best of
            what is: of these two when not given
        autocast: ``torch.bfloat16`` for ``forward`` (parameters, loss and optimizer keep theirs); float16 would need
            its loss scaled
        progress: show a bar

    Returns a `Trained`. Raises ValueError or TypeError, before the first step, for what does not fit.

    >>> x = torch.linspace(-1, 1, 9)[:, None].double()
    >>> slope = {"w": torch.zeros(3, 1, 1).double()}
    >>> rates, limits = torch.tensor([0.1, 1.0, 10.0]), {"stop_loss": 1e-6, "max_loss": 1e6}
    >>> print(train(lambda p, x: linear(x, p["w"]), slope, x, 2 * x, SGD(rates), steps=200, **limits))
    3 nets, 4 to 83 steps, 2 reached the stop loss; net 2 diverged at step 4
    """
    theta = _flat(params)
    n_nets, n = len(theta), _samples(x, y, theta, per_net)
    if isinstance(optimizer, type) or not all(hasattr(optimizer, part) for part in ("lr", "start", "change")):
        raise TypeError(f"optimizer must be SGD(...) or Adam(...) of labkit.training, got {optimizer!r}")
    if autocast not in (None, torch.bfloat16):
        raise ValueError(f"autocast must be torch.bfloat16 or None, got {autocast}")
    _admit_plan(n_nets, n, steps, batch, generators, record_every)
    max_loss = _per_net("max_loss", max_loss, theta, _require_above_zero)
    constant_lr = None if callable(optimizer.lr) else _per_net("lr", optimizer.lr, theta, require_positive)
    clip = None if clip is None else _per_net("clip", clip, theta, require_positive)
    stop_loss = None if stop_loss is None else _per_net("stop_loss", stop_loss, theta, require_finite)
    batches = repeat((x, y)) if batch is None else _batches(x, y, n, per_net, batch, generators)
    cast = torch.autocast(theta.device.type, autocast) if autocast else nullcontext()

    state = optimizer.start(theta)
    live = torch.ones(n_nets, dtype=torch.bool, device=theta.device)
    stopped, diverged = ~live, ~live
    taken = torch.zeros(n_nets, dtype=torch.int64, device=theta.device)
    best, best_loss = theta.clone(), torch.full_like(theta[:, 0], math.inf)
    running, records, good_lr = None, [], live.all()
    with tqdm(total=steps, disable=not progress, unit="step") as bar:
        for step in range(steps + 1):  # the last round only looks: at the loss of the final parameters
            leaf = theta.detach().requires_grad_()
            x_now, y_now = next(batches)
            with torch.enable_grad():
                with cast:
                    out = forward(_named(leaf, params), x_now)
                if not isinstance(out, Tensor):
                    raise TypeError(f"forward must give a tensor ({n_nets}, batch, ...), got {type(out).__name__}")
                losses = loss(out.to(theta.dtype), y_now)
                total = losses.sum()
            now = losses.detach()
            if now.shape != (n_nets,):
                shapes = f"got {tuple(out.shape)} and {tuple(now.shape)}"
                raise ValueError(f"forward must give ({n_nets}, batch, ...) and loss ({n_nets},), {shapes}")
            if running is None:
                running = now
            share = 1 if batch is None else max(batch / n, 1 / (step + 1))
            running = torch.where(live, now if share == 1 else running.lerp(now, share), running)
            lost = live & ~(now.isfinite() & (now <= max_loss))
            diverged, live = diverged | lost, live & ~lost
            if stop_loss is not None and (batch is None or step + 1 >= n // batch):
                done = live & (running <= stop_loss)
                stopped, live = stopped | done, live & ~done

            looking = step % LOOK_EVERY == 0 or step == steps
            if looking and not good_lr:
                raise ValueError(f"lr(step, params) must be finite and >= 0, which it was not before step {step}")
            last = looking and (step == steps or not live.any())
            if last or step % (record_every or steps) == 0:
                judged = running if validate is None else _per_net("validate", validate(_named(theta, params)), theta)
                records.append((step, running, judged))
                better = (judged < best_loss) & ~diverged
                best_loss, best = torch.where(better, judged, best_loss), torch.where(better[:, None], theta, best)
            if looking and progress:
                bar.set_postfix_str(f"{int(live.sum())} of {n_nets} nets, loss {running.median().item():.3g}")
                bar.update(step - bar.n)
            if last:
                break

            (grad,) = torch.autograd.grad(total, leaf)
            with torch.no_grad():
                if clip is not None:
                    grad = grad * (clip / (grad.norm(dim=1) + 1e-6)).clamp(max=1)[:, None]  # 1e-6: as torch does
                lr = constant_lr
                if lr is None:
                    lr = _per_net("lr", optimizer.lr(step, _named(theta, params)), theta)
                    good_lr = good_lr & ((lr >= 0) & lr.isfinite()).all()
                change = optimizer.change(theta, grad, state, lr[:, None], step)
                theta = torch.where(live[:, None], theta + change, theta)  # not 0·change, which may be NaN
                taken += live
    at, history, judged = zip(*records, strict=True)
    return Trained(
        params=_named(theta, params),
        best=_named(best, params),
        best_loss=best_loss,
        recorded=torch.tensor(at, device=theta.device),
        loss=torch.stack(history),
        validation=None if validate is None else torch.stack(judged),
        steps=taken,
        stopped=stopped,
        diverged=diverged,
    )


def _admit_plan(
    n_nets: int,
    n: int,
    steps: int,
    batch: int | None,
    generators: torch.Generator | Sequence[torch.Generator] | None,
    record_every: int | None,
) -> None:
    for name, count in (("steps", steps), ("record_every", record_every), ("batch", batch)):
        if count is not None and not hasattr(count, "__index__"):
            raise TypeError(f"{name} must be an integer, got {count!r}")
        if count is not None and count < 1:
            raise ValueError(f"{name} must be >= 1, got {count}")
    if (batch is None) != (generators is None):
        raise ValueError("batch and generators belong together: give both, or neither to use all samples")
    if batch is None:
        return
    if batch > n:
        raise ValueError(f"batch must lie in [1, {n}], the number of samples, got {batch}")
    if isinstance(generators, torch.Generator):
        return
    if not isinstance(generators, list | tuple) or not all(isinstance(g, torch.Generator) for g in generators):
        raise TypeError(f"generators must be a torch.Generator or a list of them, got {generators!r}")
    if len(generators) != n_nets:
        raise ValueError(f"generators must be one for all nets or a list of {n_nets}, got a list of {len(generators)}")


def _flat(params: Params) -> Tensor:
    """All parameters as one new matrix (net, n_params)."""
    if not isinstance(params, dict):
        raise TypeError(f"params must be a dict of tensors (net, ...), got {type(params).__name__}")
    if not params:
        raise ValueError("params must hold at least one tensor (net, ...), got none")
    for name, value in params.items():
        if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
            found = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"params[{name!r}] must be a float32 or float64 tensor, got {found}")
    first, leader = next(iter(params.items()))
    for name, value in params.items():
        if value.dim() < 1 or 0 in value.shape or len(value) != len(leader):
            shapes = f"{first} {tuple(leader.shape)}, {name} {tuple(value.shape)}"
            raise ValueError(f"params must share a leading net axis and not be empty, got {shapes}")
        if (value.device, value.dtype) != (leader.device, leader.dtype):
            found = f"{first} {leader.dtype} on {leader.device}, {name} {value.dtype} on {value.device}"
            raise ValueError(f"params must share one dtype and one device, got {found}")
        require_finite(**{f"params[{name!r}]": value.detach()})
    return torch.cat([value.detach().reshape(len(value), -1) for value in params.values()], dim=1)


def _named(theta: Tensor, params: Params) -> Params:
    """The rows of theta (net, n_params) in the shapes of params."""
    pieces = theta.split([value[0].numel() for value in params.values()], dim=1)
    return {name: piece.view(value.shape) for (name, value), piece in zip(params.items(), pieces, strict=True)}


def _samples(x: Tensor, y: Tensor, theta: Tensor, per_net: bool) -> int:
    """The number of samples, after checking that the data fit each other and the parameters."""
    lead = (len(theta),) if per_net else ()
    wanted = f"({len(theta)}, n, ...)" if per_net else "(n, ...)"
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
        if value.device != theta.device:
            raise ValueError(f"{name} is on {value.device} but params are on {theta.device}: use one device")
        if value.dim() <= len(lead) or value.shape[: len(lead)] != lead or 0 in value.shape:
            raise ValueError(f"{name} must be {wanted} and not empty, got {tuple(value.shape)}")
        if value.is_floating_point():
            if value.dtype != theta.dtype:
                raise ValueError(f"{name} is {value.dtype} but params are {theta.dtype}: use one dtype")
            require_finite(**{name: value})
    if x.shape[len(lead)] != y.shape[len(lead)]:
        raise ValueError(f"x and y must hold equally many samples, got {tuple(x.shape)} and {tuple(y.shape)}")
    return x.shape[len(lead)]


def _per_net(name: str, value: PerNet, theta: Tensor, require: Callable | None = None) -> Tensor:
    """A number or (net,) as (net,), after the check ``require``."""
    try:
        value = torch.as_tensor(value, dtype=theta.dtype, device=theta.device).detach()
    except (TypeError, ValueError, RuntimeError):  # a text, None, a ragged list
        raise TypeError(f"{name} must be a number or ({len(theta)},), one per net, got {value!r}") from None
    if value.shape not in ((), theta.shape[:1]):
        raise ValueError(f"{name} must be a number or ({len(theta)},), one per net, got {tuple(value.shape)}")
    if require is not None:  # not of what changes from step to step: a look at a value makes a GPU wait
        require(**{name: value})
    return value.expand(len(theta))


def _batches(
    x: Tensor,
    y: Tensor,
    n: int,
    per_net: bool,
    batch: int,
    generators: torch.Generator | Sequence[torch.Generator],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Mini-batches without end: (batch, ...) where the nets share data and order, else (net, batch, ...)."""
    while True:
        if isinstance(generators, torch.Generator):
            order = torch.randperm(n, generator=generators, device="cpu")
        else:
            order = torch.stack([torch.randperm(n, generator=g, device="cpu") for g in generators])
        order = order.to(x.device)
        for index in order.split(batch, dim=-1)[: n // batch]:
            if not per_net:
                yield x[index], y[index]
            elif index.dim() == 1:
                yield x[:, index], y[:, index]
            else:
                net = torch.arange(len(x), device=x.device)[:, None]
                yield x[net, index], y[net, index]
