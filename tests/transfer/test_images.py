"""The experiment at paper scale, small, on generated files of the real formats: every rule of it, and the command."""

import threading
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from labkit import compute, data
from labkit.course.command import main
from labkit.data.download import DataError
from labkit.data.images import subset
from labkit.results import LONG, recipe
from labkit.sweep import Table
from labkit.transfer import images as study
from labkit.transfer.images import (
    FULL,
    TINY,
    Protocol,
    at_smallest_rate,
    classes,
    finetune,
    image_transfer,
    largest_that_fits,
    pretrain,
    scaled,
    shots,
)
from labkit.transfer.protocol import Phase
from labkit.transfer.resnet import RESNET18
from tests.data import served as files
from tests.data.served import Server, served, serving
from tests.stand_in import forgotten_device

FILES = {
    "cifar-100-binary.tar.gz": files.cifar100(600, 200),
    "train_32x32.mat": files.svhn(30),
    "test_32x32.mat": files.svhn(60, seed=6),
}
BRIEF = replace(TINY, epochs=2, few_steps=4, few_rates=(0.01,), rates=(0.1,))
SETTING = {"task": "subset", "n": 10, "source": "pretrained", "centered": False, "gamma": 1.0, "weight_scale": 1.0}


@pytest.fixture(scope="module")
def server():
    with serving(Server(dict(FILES))) as server:
        yield server


@pytest.fixture(autouse=True)
def place(server, monkeypatch, tmp_path):
    """The data, the results and the pretrained nets are in a folder of the test."""
    served(monkeypatch, tmp_path / "data", server)
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(rules=BRIEF, **settings):
    """`image_transfer` of rows in which the given settings differ."""
    given = {"norm": "frozen", **SETTING, "kappa": 1.0, "seed": 0, **settings}
    count = max(len(value) for value in given.values() if isinstance(value, list))
    columns = {n: np.array(v if isinstance(v, list) else [v] * count) for n, v in given.items()}
    return image_transfer(**columns, rules=rules)


def stored(place):
    return sorted(path for path in (place / "cache" / "pretrained").glob("*/*") if path.suffix != ".lock")


# ---- who sees which images


def keys(images):
    return {image.numpy().tobytes() for image in images.x}


def test_ninety_classes_are_known_and_ten_are_not():
    drawn = [classes(seed) for seed in range(5)]
    assert all(sorted(known + held) == list(range(100)) and len(held) == 10 for known, held in drawn)
    assert len({tuple(held) for _, held in drawn}) == 5


@pytest.mark.parametrize("seed", [0, 1])
def test_no_image_is_in_two_places(seed):
    known, held_out = classes(seed)
    whole, tested = data.load("cifar100", device="cpu"), data.load("cifar100", "test", device="cpu")
    seen = keys(subset(study._kept(TINY, seed, data.load)[0], known))
    assert len(seen) == 90 * TINY.n_per_class
    for task, of in (("subset", known[:10]), ("new", held_out)):
        few, test = shots(TINY, task, 10, seed)
        assert keys(few) <= keys(subset(whole, of)) and keys(test) == keys(subset(tested, of))
        assert not keys(few) & seen and len(keys(few)) == 10
        assert few.y.tolist() == list(range(10)) and few.names == tuple(f"kind{number}" for number in of)
    few, test = shots(TINY, "svhn", 20, seed)
    assert keys(few) <= keys(data.load("svhn", device="cpu")) and keys(test) == keys(data.load("svhn", "test"))
    assert torch.bincount(few.y).tolist() == [2] * 10


def test_at_most_a_hundred_a_class_are_tested_on(monkeypatch):
    monkeypatch.setattr(study, "TEST_PER_CLASS", 3)
    assert torch.bincount(shots(TINY, "svhn", 10, 0)[1].y).tolist() == [3] * 10
    assert len(shots(TINY, "new", 10, 0)[1]) == 20  # two a class are all there are


# ---- scales


@pytest.mark.parametrize("norm, factor", [("batch", 1.7), ("none", 1.7**2)])
def test_scales_change_the_function_by_a_factor_only(norm, factor):
    net = TINY.network(norm)
    params = net.init(5, study.streams([3], study.WEIGHTS), dtype=torch.float64)
    x = torch.randn(6, 3, 32, 32, generator=compute.generator(0), dtype=torch.float64)
    new = scaled(net, params, 0.6, 1.7)
    torch.testing.assert_close(net.forward(new, x), factor * net.forward(params, x), rtol=1e-3, atol=1e-3)
    ratio = {name: (new[name].norm() / params[name].norm()).item() for name in ("stem", "1.1.first", "readout")}
    first = 1.7 * 0.6 if norm == "batch" else 1.0
    assert ratio == pytest.approx(
        {"stem": 1.7 * 0.6, "1.1.first": first, "readout": 1.7 / (0.6 if norm == "none" else 1)}
    )


# ---- pretrained nets on disk


def test_a_pretrained_net_is_kept_and_comes_back_as_it_was(place, monkeypatch):
    scales = [(0.5, 1.0), (2.0, 1.0)]
    made = pretrain(BRIEF, "batch", scales, seed=0)
    assert len(stored(place)) == 2

    def refuse(*arguments, **options):
        raise AssertionError("it is there already")

    with monkeypatch.context() as patch:
        patch.setattr(study, "learn", refuse)
        again = pretrain(BRIEF, "frozen", scales[::-1], seed=0)[::-1]  # the same nets
    for one, other in zip(made, again, strict=True):
        for part in ("initial", "initial_statistics", "params", "statistics"):
            torch.testing.assert_close(getattr(one, part), getattr(other, part), rtol=0, atol=0)
        assert one.numbers == other.numbers and not one.diverged
    assert (made[0].params["stem"] - made[0].initial["stem"]).abs().max() > 0


@pytest.mark.parametrize("dies", [False, True])
def test_two_processes_do_not_pretrain_the_same_net(place, monkeypatch, dies):
    """The other one, here a thread, is within its training when this one comes; it finishes it, or dies."""
    inside, go, learned, others = threading.Event(), threading.Event(), [], []

    def learn(*arguments, **options):
        learned.append(threading.current_thread())
        if len(learned) == 1:
            inside.set()
            assert go.wait(20)
            if dies:
                raise KeyboardInterrupt
        return study_learn(*arguments, **options)

    def other():
        try:
            others.extend(pretrain(BRIEF, "none", [(1.0, 1.0)], 0))
        except KeyboardInterrupt:
            pass

    study_learn, said = study.learn, []
    monkeypatch.setattr(study, "learn", learn)
    monkeypatch.setattr(study.tqdm, "write", lambda text: said.append(text) or go.set())
    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(20)
    (mine,) = pretrain(BRIEF, "none", [(1.0, 1.0)], 0)
    thread.join()
    assert said == ["another process is pretraining these nets: waiting for it"]
    assert len(learned) == (2 if dies else 1) and len(stored(place)) == 1
    for net in others:
        torch.testing.assert_close(net.params, mine.params, rtol=0, atol=0)


def test_statistics_are_of_images_of_all_classes_whatever_their_order(monkeypatch):
    """few_shot sorts by class, so that a batch in that order would be of few classes, the last left out."""
    seen, whole = [], study.statistics
    monkeypatch.setattr(study, "statistics", lambda *arguments: seen.append(arguments) or whole(*arguments))
    (old,) = pretrain(BRIEF, "batch", [(1.0, 1.0)], 0)
    net, params, x, batch = seen[1]
    assert len(x) == 90 * BRIEF.n_per_class and len(x) % batch == 0 and len(x) // batch == 6
    mixed = x[torch.randperm(len(x), generator=compute.generator(1))]
    every, other = net.statistics(params, x), net.statistics(params, mixed, batch)
    for name, both in old.statistics.items():
        for found in (both, other[name]):
            assert ((found - every[name])[:, 0] / every[name][:, 1].sqrt()).abs().max() < 0.2, name
            assert (found[:, 1] / every[name][:, 1] - 1).abs().max() < 0.3, name


def test_images_are_read_once_for_many_calls(monkeypatch):
    read, whole = [], data.load
    monkeypatch.setattr(data, "load", lambda *names: read.append(names) or whole(*names))
    study._loaded.cache_clear()
    for seed in (0, 0, 1):
        run(replace(BRIEF, epochs=1, few_steps=1, stack=1), seed=[seed], norm="none")
    assert sorted(read) == [("cifar100", "test"), ("cifar100", "train")]


def test_what_a_net_depends_on_makes_another_file(place):
    least = replace(BRIEF, epochs=1)
    for rules, norm, seed in [
        (least, "batch", 0),
        (replace(least, stop_loss=4.0), "batch", 0),
        (least, "none", 0),
        (least, "batch", 1),
    ]:
        before = len(stored(place))
        pretrain(rules, norm, [(1.0, 1.0)], seed)
        assert len(stored(place)) == before + 1


def test_other_data_make_another_net(place, server, monkeypatch):
    pretrain(BRIEF, "batch", [(1.0, 1.0)], 0)
    (place / "data" / "cifar-100-binary.tar.gz").unlink()
    monkeypatch.setattr(server, "files", FILES | {"cifar-100-binary.tar.gz": files.cifar100(700, 200)})
    files.expect(monkeypatch, server.files)
    pretrain(BRIEF, "batch", [(1.0, 1.0)], 0)
    assert len(stored(place)) == 2


def test_a_damaged_file_is_made_again(place):
    (made,) = pretrain(BRIEF, "none", [(1.0, 1.0)], 0)
    (path,) = stored(place)
    path.write_bytes(path.read_bytes()[:-7] + b"damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        (again,) = pretrain(BRIEF, "none", [(1.0, 1.0)], 0)
    torch.testing.assert_close(made.params, again.params, rtol=0, atol=0)


# ---- training, against a plain loop


def by_hand(net, params, x, y, statistics, center, steps, rate):
    """Full-batch SGD with momentum .9 and clipped gradients, one net, with torch's own optimizer."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
    optimizer = torch.optim.SGD(leaves.values(), rate, momentum=0.9)
    for _ in range(steps):
        out = net.forward(leaves, x, statistics)[0]
        if center:
            out = out - net.forward(params, x, statistics)[0].detach()
        optimizer.zero_grad()
        functional.cross_entropy(out, y).backward()
        torch.nn.utils.clip_grad_norm_(leaves.values(), 5.0)
        optimizer.step()
    return {name: value.detach() for name, value in leaves.items()}


@pytest.mark.parametrize("norm, center", [("frozen", False), ("frozen", True), ("train", True), ("none", False)])
def test_fine_tuning_is_that_of_a_plain_loop(norm, center):
    old = pretrain(BRIEF, norm, [(1.0, 1.0)], 0) * 2
    few, test = shots(BRIEF, "subset", 10, 0)
    rules = replace(BRIEF, few_steps=5, few_stop_loss=1e-9)
    gamma = [1.0, 0.3]
    found = finetune(rules, old, [0, 0], [few] * 2, [test] * 2, gamma, ["pretrained"] * 2, norm, center)
    for i, net in enumerate(old):
        draw = torch.randn(10, 8, generator=study.streams([0], study.READOUT)[0], dtype=torch.float64).float()
        start = net.params | {"readout": gamma[i] * draw[None] / 8**0.5}
        frozen = net.statistics if norm == "frozen" else None
        end = by_hand(net.net, start, few.x, few.y, frozen, center, 5, 0.01)
        ends = [
            None if norm == "none" else frozen if norm == "frozen" else net.net.statistics(params, few.x)
            for params in (start, end)
        ]
        with torch.no_grad():
            out = net.net.forward(end, test.x, ends[1])[0]
            if center:
                out = out - net.net.forward(start, test.x, ends[0])[0]
        assert found["accuracy"][i].item() == pytest.approx((out.argmax(1) == test.y).double().mean().item(), abs=0.051)
        with torch.no_grad():
            out = net.net.forward(end, few.x, frozen)[0]
            out = out - net.net.forward(start, few.x, frozen)[0] if center else out
        assert found["loss"][i].item() == pytest.approx(functional.cross_entropy(out, few.y).item(), rel=2e-3)
        assert found["steps"][i] == 5 and found["rate"][i].item() == pytest.approx(0.01)


def test_one_by_one_or_as_one_is_the_same():
    settings = {"kappa": [0.5, 2.0, 0.5], "seed": [0, 0, 1]}
    stacked, single = (run(replace(BRIEF, epochs=1, few_steps=2, stack=stack), **settings) for stack in (16, 1))
    for name in ("loss", "pretraining_loss", "pr_before", "ensd"):
        np.testing.assert_allclose(stacked[name], single[name], rtol=2e-3, err_msg=name)


def test_reset_is_the_code_path_of_pretraining_with_no_step():
    (old,) = pretrain(BRIEF, "batch", [(1.0, 1.0)], 0)
    unmoved = replace(old, params=old.initial, statistics=old.initial_statistics)
    few, test = shots(BRIEF, "new", 10, 0)
    found = finetune(
        BRIEF, [old, unmoved, old], [0] * 3, [few] * 3, [test] * 3, [1.0] * 3, ["reset", "pretrained", "pretrained"],
        "frozen", False,
    )  # fmt: skip
    for name in ("accuracy", "loss", "pr_after", "cka"):
        first, second, third = found[name].tolist()
        assert first == pytest.approx(second, rel=1e-4), name
    assert abs(found["loss"][0] - found["loss"][2]) > 1e-4  # pretraining did something


def test_pretraining_teaches():
    """The generated classes differ in color and pattern; what was learned of 90 helps with few images of ten."""
    net = replace(RESNET18, channels=(8, 16), blocks=1)
    rules = replace(TINY, net=net, rates=(0.3,), epochs=12, few_rates=(0.03,), few_steps=40)
    found = run(rules, source=["pretrained", "reset"], gamma=0.1, centered=True)
    assert found["pretraining_accuracy"][0] > 0.1  # chance is .011
    assert found["accuracy"][0] > found["accuracy"][1] + 0.2


def test_a_scale_at_which_training_diverges_is_reported():
    found = run(norm="none", weight_scale=[1.0, 1e12, 1e12], source=["pretrained", "pretrained", "reset"])
    assert found["pretraining_diverged"].tolist() == [False, True, True]
    assert found["diverged"].tolist()[:2] == [False, True]
    for name in (*study.UNITS, "loss", "steps", "rate"):
        assert np.isfinite(found[name][0]) and np.isnan(found[name][1]), name
    assert not found["reached"][1]
    assert np.isnan(found["pretraining_accuracy"][1]) and np.isfinite(found["pretraining_accuracy"][0])


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_bfloat16_agrees_with_float32(norm):
    """On the CPU: half precision of the convolutions changes logits by percents, and the loss less."""
    half = replace(BRIEF, autocast=torch.bfloat16, epochs=1)
    (exact,), (rough,) = (pretrain(rules, norm, [(1.0, 1.0)], 0) for rules in (replace(half, autocast=None), half))
    assert exact.numbers["precision"] == 0 and 1e-5 < rough.numbers["precision"] < 0.05
    assert rough.numbers["loss"] == pytest.approx(exact.numbers["loss"], rel=0.02)
    assert rough.params["readout"].dtype == torch.float32


def test_the_readout_is_never_in_half_precision():
    net = TINY.network("none")
    params = net.init(10, study.streams([0], study.WEIGHTS), dtype=torch.float32)
    x = torch.randn(4, 3, 32, 32, generator=compute.generator(0))
    with torch.autocast("cpu", torch.bfloat16):
        out, z = study.logits(net, params, x, None), study.features(net, params, x, None)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.einsum("nbw,ncw->nbc", z, params["readout"]))


# ---- the learning rate


def test_the_smallest_rate_that_gets_there_is_taken():
    """Nets that need .01, .03, never (best at .03), and one that diverges but at .01."""
    asked = []

    def attempt(index, rate):
        asked.append((rate, index.tolist()))
        loss = {0.01: [0.0, 3.0, 5.0, torch.nan], 0.03: [9.0, 0.0, 2.0, 1.0], 0.1: [9.0, 9.0, 4.0, 0.5]}[rate]
        loss = torch.tensor(loss)[index]
        params = {"w": torch.full((len(index), 2), rate)}
        return Phase(params, torch.full((len(index),), 7), loss, loss == 0.0, loss.isnan())

    found, rates = at_smallest_rate(attempt, 4, (0.1, 0.01, 0.03), torch.zeros(1))
    assert asked == [(0.01, [0, 1, 2, 3]), (0.03, [1, 2, 3]), (0.1, [2, 3])]
    assert rates.tolist() == pytest.approx([0.01, 0.03, 0.03, 0.1])
    assert torch.equal(found.params["w"][:, 0], rates) and found.loss.tolist() == [0.0, 0.0, 2.0, 0.5]
    assert found.reached.tolist() == [True, True, False, False] and not found.diverged.any()


# ---- memory


def lacking(size):
    """What a CPU says: more bytes than there are addresses."""
    torch.empty(2**60 if size > 5 else 1, dtype=torch.uint8)


def test_the_largest_batch_that_fits():
    assert largest_that_fits(lacking, 64) == 4
    assert largest_that_fits(lambda size: lacking(10), 64) == 0
    with pytest.raises(RuntimeError, match="something else"):
        largest_that_fits(lambda size: (_ for _ in ()).throw(RuntimeError("something else")), 8)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), None])
@pytest.mark.parametrize("phase", ["pretraining", "fine-tuning"])
def test_a_batch_too_large_for_memory_is_caught_and_one_that_fits_is_named(monkeypatch, error, phase):
    small = pretrain(BRIEF, "none", [(1.0, 1.0)], 0)
    logits = study.logits

    def scarce(net, params, x, frozen):
        if x.shape[-4] > 20 and torch.is_grad_enabled():
            if error:
                raise error
            lacking(99)
        return logits(net, params, x, frozen)

    monkeypatch.setattr(study, "logits", scarce)
    few, test = shots(BRIEF, "svhn", 20, 0)
    many = replace(few, x=few.x.repeat(3, 1, 1, 1), y=few.y.repeat(3))
    with pytest.raises(MemoryError) as caught:
        if phase == "pretraining":
            pretrain(replace(BRIEF, batch=50), "none", [(1.0, 1.0)], 0)
        else:
            rules = replace(BRIEF, batch=50)
            finetune(rules, small, [0], [many], [test], [1.0], ["pretrained"], "none", False)
    assert str(caught.value) == (
        "batch=50 images a step do not fit into the memory of cpu; 12 do: take  labkit sweep --batch 12  or rules with "
        "batch=12, or a stack below 16"
    )


@pytest.mark.parametrize("where", ["data", "statistics", "precision", "compare", "new_readout"])
def test_a_lack_of_memory_anywhere_is_a_sentence(monkeypatch, where):
    def lack(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(study, "_loaded" if where == "data" else where, lack)
        alone = where in ("data", "new_readout")
        sentence = "images and networks alone do not" if alone else r"batch=\d+ images a step do not .*--batch \d+"
        with pytest.raises(MemoryError, match=sentence):
            run(replace(BRIEF, epochs=1, few_steps=1, stack=1), seed=[0])


def test_the_command_takes_another_batch_and_the_table_says_so(monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_BATCH", "7")
    for profile in ("quick", "full"):
        with compute.use_profile(profile):
            assert study.protocol().batch == 7 and recipe("image_transfer").grid["batch"] == [7]
    seen = []
    monkeypatch.setattr("labkit.results.remake", lambda name: seen.append(study.protocol().batch) or Path(__file__))
    assert main(["sweep", "image_transfer", "--batch", "5"]) == 0 and seen == [5]
    for words, sentence in [
        (["relu_norms", "--batch", "5"], "--batch is for image_transfer."),
        (["image_transfer", "--batch", "many"], "LABKIT_BATCH must be a whole number >= 1, got 'many'"),
        (["image_transfer", "--batch", "0"], "LABKIT_BATCH must be a whole number >= 1, got '0'"),
    ]:
        assert main(["sweep", *words]) == 1
        assert capsys.readouterr().err == sentence + "\n"
    with pytest.raises(ValueError, match=r"batch must be the same for all rows of a call, got \[5, 6\]"):
        run(batch=[5, 6])


def test_what_failed_holds_no_memory_while_the_size_is_sought(monkeypatch):
    held, seen = [], []

    def failing(net, params, x, frozen):
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(study, "logits", failing)
    monkeypatch.setattr(study, "largest_that_fits", lambda step, size: seen.append(held[0]()) or 7)
    with pytest.raises(MemoryError, match="7 do"):
        pretrain(BRIEF, "none", [(1.0, 1.0)], 0)
    assert seen == [None]


def test_another_error_passes_as_it_is(monkeypatch):
    monkeypatch.setattr(study, "logits", lambda *arguments: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        pretrain(BRIEF, "none", [(1.0, 1.0)], 0)


# ---- bad input, before hours of pretraining


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"norm": ["layer"]}, "norm must be one of frozen, train, none, got 'layer'"),
        ({"source": ["scratch"]}, "source must be one of pretrained, reset, got 'scratch'"),
        ({"task": ["mnist"]}, "task must be one of subset, new, svhn, got 'mnist'"),
        ({"n": [15]}, "n must be a multiple of 10, the number of classes, got 15"),
        ({"n": [0]}, "n must be >= 10, got 0"),
        ({"n": [1000]}, "n must be <= 10, as many as there are of each class for subset, got 1000"),
        ({"kappa": [0.0]}, "kappa must be positive and finite, got 0.0"),
        ({"kappa": [np.nan]}, "kappa must be positive and finite, got nan"),
        ({"gamma": [-1.0]}, r"gamma must lie in \[0, inf\), got -1.0"),
        ({"gamma": [np.inf]}, r"gamma must lie in \[0, inf\), got inf"),
        ({"centered": ["plain"]}, "centered must be True or False, got 'plain'"),
        ({"centered": [2]}, "centered must be True or False, got 2"),
        ({"seed": [2**62]}, r"seed must be <= 2\*\*59, got 4611686018427387904"),
        *(
            ({"weight_scale": [value], "norm": norm}, f"weight_scale must be positive and finite, got {value}")
            for norm in study.NORMS
            for value in (-1.0, 0.0, np.nan, np.inf)
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(monkeypatch, settings, sentence):
    monkeypatch.setattr(study, "learn", lambda *arguments, **options: pytest.fail("it was trained"))
    with pytest.raises((ValueError, TypeError), match=sentence):
        run(**settings)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (
            lambda: replace(TINY, rates=()),
            r"rates must be a tuple of one .* positive and finite, got \(\)",
        ),
        (lambda: replace(TINY, few_rates=(0.1, 0.0)), r"few_rates must be .*, got \(0.1, 0.0\)"),
        (lambda: replace(TINY, few_rates=("a",)), r"few_rates must be .*, got \('a',\)"),
        (lambda: replace(TINY, rates=[0.1]), r"rates must be a tuple .*, got \[0.1\]"),
        (lambda: replace(TINY, stop_loss=np.nan), "stop_loss must be positive and finite, got nan"),
        (lambda: replace(TINY, few_stop_loss=-1.0), "few_stop_loss must be positive and finite, got -1.0"),
        (lambda: replace(TINY, clip=0.0), "clip must be positive and finite, got 0.0"),
        (lambda: replace(TINY, momentum=1.0), r"momentum must lie in \[0, 1\), got 1.0"),
        (lambda: replace(TINY, autocast=torch.float16), "autocast must be torch.bfloat16 or None, got torch.float16"),
        (lambda: replace(TINY, net=replace(TINY.net, channels=(8,))), "net must have .* two stages or more, got"),
        (lambda: replace(TINY, net=replace(TINY.net, in_channels=1)), "net must have .* in_channels=3 .*, got"),
        (lambda: replace(TINY, n_per_class=0), "n_per_class must be >= 1, got 0"),
        (lambda: replace(TINY, stack=0), "stack must be >= 1, got 0"),
        (lambda: replace(TINY, batch=1.5), "batch must be a whole number, got 1.5"),
        (lambda: replace(TINY, net=TINY.network("none")), "net must have norm='batch', .*got ResNet"),
        (lambda: shots(TINY, "svhn", 10, 0.5), "seed must be a whole number, got 0.5"),
        (lambda: shots(TINY, "svhn", 10, -1), "seed must be >= 0, got -1"),
        (
            lambda: pretrain(TINY, "layer", [(1.0, 1.0)], 0),
            "norm must be one of batch, frozen, train, none, got 'layer'",
        ),
    ],
)
def test_bad_rules_and_seeds_are_refused_in_a_sentence(call, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()


def test_without_data_one_sentence_says_so(monkeypatch):
    monkeypatch.setenv("LABKIT_DATA_URL", "http://127.0.0.1:1")
    with pytest.raises(DataError, match="or stay with labkit.data.digits"):
        run(seed=[0])


# ---- every device


def test_the_study_gives_the_same_on_every_device(device, monkeypatch):
    rules, settings = replace(BRIEF, epochs=1, few_steps=2), {"norm": "frozen", "kappa": [0.5, 2.0], "centered": True}
    expected = run(rules, **settings)
    monkeypatch.setenv("LABKIT_DEVICE", str(device.place))
    found = run(rules, **settings)
    for name in ("loss", "pretraining_loss", "pr_before", "pr_after", "ensd", "cka"):
        np.testing.assert_allclose(found[name], expected[name], rtol=5e-3, err_msg=name)


def test_nothing_is_made_without_a_device():
    with forgotten_device():
        found = run(seed=[0], norm="frozen")
    assert np.isfinite(found["loss"]).all()


# ---- the command


def test_one_command_runs_all_of_it_and_goes_on_where_it_was_stopped(place, monkeypatch, capsys):
    words = ["sweep", "image_transfer", "--profile", "quick", "--device", "cpu"]
    monkeypatch.setattr(study, "TINY", replace(BRIEF, epochs=1, few_steps=2))
    calls = []

    def stopped(*arguments, **options):
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return finetune(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(study, "finetune", stopped)
        patch.setattr("labkit.cache._labkit_source", lambda: "the same")  # a patched function is other code
        assert main(words) == 130
    assert "; 16 of 48 rows are finished and kept in " in capsys.readouterr().err
    nets = {path: path.stat().st_mtime_ns for path in stored(place)}
    assert len(nets) == 4
    monkeypatch.setattr("labkit.cache._labkit_source", lambda: "the same")
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"made {place / 'image_transfer.npz'} (") and "16/48" in said.err and "48/48" in said.err
    assert nets.items() <= {path: path.stat().st_mtime_ns for path in stored(place)}.items()  # none was made again
    table = Table.load(place / "image_transfer.npz")
    assert len(table) == 48 and set(table["task"]) == {"subset", "new", "svhn"}
    for name in ("accuracy", "pr_before", "ensd", "loss", "pretraining_loss"):
        assert np.isfinite(table[name]).all(), name
    assert (place / "image_transfer.json").exists()


def test_the_command_says_in_one_sentence_what_is_missing(place, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_DATA_URL", "http://127.0.0.1:1")
    assert main(["sweep", "image_transfer", "--profile", "quick"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("cifar-100-binary.tar.gz cannot be downloaded from")
    assert not list(place.glob("*.npz"))


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_the_recipe_at_every_profile(profile):
    """What section 3 of the protocol asks for at full size: five seeds, all tasks, norms and outputs, 10 to 1000."""
    with compute.use_profile(profile):
        made, rules = recipe("image_transfer"), study.protocol()
    assert list(LONG) == ["image_transfer"] and made.data == ("cifar100", "svhn")
    rows = made.batched
    fast = ["weight_scale", "kappa", "gamma"]  # rows of one call share the rest
    assert list(made.grid)[::-1][:3] == fast and made.grid["batch"] == [rules.batch]
    if rules.stack > 1:
        assert rows == made.seeds * np.prod([len(made.grid[name]) for name in fast])
    else:
        assert rows == 1  # a kill costs a row
    assert set(made.grid["task"]) == {"subset", "new", "svhn"} and set(made.grid["centered"]) == {False, True}
    assert isinstance(rules, Protocol) and (rules.stop_loss > 0) and rules.autocast is None
    if profile == "full":
        assert rules == FULL and rules.net == RESNET18 and made.seeds >= 5
        assert (min(made.grid["n"]), max(made.grid["n"])) == (10, 1000)
        assert set(made.grid["norm"]) == set(study.NORMS) and set(made.grid["source"]) == set(study.SOURCES)
        assert len(rules.few_rates) == 3 and 500 - rules.n_per_class > 1000 / 10


def test_bfloat16_only_with_cuda(monkeypatch):
    monkeypatch.setattr(compute, "device", lambda: torch.device("cuda"))
    with compute.use_profile("full"):
        assert study.protocol().autocast == torch.bfloat16


def test_the_shape_of_the_paper_runs_once():
    """ResNet-18 itself, 11 million weights: one step on two images, in both of its forms."""
    for norm in ("batch", "none"):
        net = FULL.network(norm)
        params = net.init(90, study.streams([0], study.WEIGHTS), dtype=torch.float32)
        assert 11.1e6 < sum(value.numel() for value in params.values()) < 11.3e6
        leaves = {name: value.requires_grad_() for name, value in params.items()}
        x = torch.randn(2, 3, 32, 32, generator=compute.generator(0))
        out = study.logits(net, leaves, x, None)
        functional.cross_entropy(out[0], torch.tensor([0, 1])).backward()
        assert out.shape == (1, 2, 90) and all(value.grad.isfinite().all() for value in leaves.values())
        assert 0.1 < out.std() < 10
