"""The task, the characters that two moduli share, and the Fourier power of an embedding, against brute force."""

import numpy as np
import pytest
import torch

from labkit import compute
from labkit.transfer.arithmetic import (
    addition,
    character_overlaps,
    fourier_power,
    power_share,
    shared_characters,
    shared_frequencies,
    split,
)


def test_all_pairs_are_there_with_their_sums():
    pairs, labels = addition(7, vocabulary=9)
    expected = [(a, b, (a + b) % 7) for a in range(9) for b in range(9)]
    assert [(*pair, label) for pair, label in zip(pairs.tolist(), labels.tolist(), strict=True)] == expected


def test_shared_characters_are_those_of_a_projection_for_all_moduli_to_60():
    """Characters of N and M as functions on Z/lcm: their inner products are 1 where they are the same, else 0."""
    for first in range(2, 61):
        for second in range(first, 61):
            period = np.lcm(first, second)
            roots = np.exp(2j * np.pi * np.arange(period) / period)
            a = np.arange(period)
            one, two = (roots[np.arange(1, n)[:, None] * (period // n) * a % period] for n in (first, second))
            overlap = np.abs(one @ two.conj().T) ** 2 / period**2  # (k of N, k of M)
            assert shared_characters(first, second) == shared_characters(second, first) == round(overlap.sum())
            kept = [k for k in range(1, first // 2 + 1) if overlap[k - 1].sum() > 0.5]
            assert shared_frequencies(first, second) == kept


def test_shared_characters_of_tensors_broadcast():
    moduli = torch.arange(2, 12)
    found = shared_characters(moduli[:, None], moduli)
    assert found.tolist() == [[shared_characters(n, m) for m in range(2, 12)] for n in range(2, 12)]


@pytest.mark.parametrize("first, second, vocabulary", [(15, 7, 30), (15, 21, 30), (15, 5, 16), (6, 4, 12), (7, 7, 9)])
def test_overlaps_are_what_least_squares_explains(first, second, vocabulary):
    tokens = np.arange(vocabulary)
    found = character_overlaps(first, second, vocabulary).numpy()
    assert found.shape == (first, second)
    for k in range(first):
        wave = np.exp(2j * np.pi * k * tokens / first)
        for other in range(second):
            regressor = np.exp(2j * np.pi * other * tokens / second)[:, None]
            rest = wave - regressor @ np.linalg.lstsq(regressor, wave, rcond=None)[0]
            assert found[k, other] == pytest.approx(1 - np.linalg.norm(rest) ** 2 / vocabulary, abs=1e-12)


@pytest.mark.parametrize("second", [5, 7, 12, 21, 30])
def test_overlaps_add_up_to_the_dimensions_in_common_on_the_tokens(second):
    """The characters of 15 are orthogonal on 30 tokens: explain each of the second modulus by all of them at once."""
    tokens = np.arange(30)
    one, two = (np.exp(2j * np.pi * np.outer(tokens, np.arange(n)) / n) for n in (15, second))
    rest = two - one @ np.linalg.lstsq(one, two, rcond=None)[0]
    explained = (1 - np.linalg.norm(rest, axis=0) ** 2 / 30).sum()
    assert character_overlaps(15, second, 30).sum().item() == pytest.approx(explained, abs=1e-9)


def test_on_a_common_period_only_what_is_shared_overlaps():
    for first, second in ((15, 21), (15, 7), (8, 12)):
        found = character_overlaps(first, second, first * second)
        assert found[1:, 1:].sum().item() == pytest.approx(shared_characters(first, second), abs=1e-9)


def test_a_split_is_a_partition_by_seed():
    train, test = split(50, 0.3, [compute.generator(seed) for seed in (0, 1, 0)])
    assert train.shape == (3, 15) and test.shape == (3, 35)
    assert all(sorted(row.tolist()) == list(range(50)) for row in torch.cat([train, test], 1))
    assert torch.equal(train[0], train[2]) and not torch.equal(train[0], train[1])


@pytest.mark.parametrize("vocabulary, modulus", [(30, 15), (30, 7), (30, 21), (12, 12), (13, 2), (20, 6)])
def test_fourier_power_is_numpys_of_the_class_means(vocabulary, modulus):
    embedding = torch.randn(2, vocabulary, 5, dtype=torch.float64, generator=compute.generator(0))
    rows = embedding.numpy()
    means = np.stack([rows[:, r::modulus].mean(1) for r in range(modulus)], 1)  # (2, M, 5)
    full = np.abs(np.fft.fft(means, axis=1)) ** 2 / modulus
    pairs = [sorted({k, modulus - k}) for k in range(1, modulus // 2 + 1)]
    expected = np.stack([full[:, pair].sum((1, 2)) for pair in pairs], 1)
    found = fourier_power(embedding, modulus)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    variance = ((means - means.mean(1, keepdims=True)) ** 2).sum((1, 2))  # Parseval
    np.testing.assert_allclose(found.sum(1), variance, rtol=1e-10)


def test_a_planted_frequency_is_found_and_nothing_else():
    tokens = torch.arange(30, dtype=torch.float64)
    for k in range(1, 8):
        wave = (2 * torch.pi * k * tokens / 15 + 0.3).cos()[:, None] + 5.0
        power = fourier_power(wave, 15)
        assert power[k - 1].item() == pytest.approx(7.5) and power.sum().item() == pytest.approx(7.5)
        assert power_share(power, shared_frequencies(15, 5)).item() == pytest.approx(float(k in (3, 6)), abs=1e-12)


def test_bad_input_is_refused_in_a_sentence():
    for modulus in (1, 0, -3):
        for call in (lambda m=modulus: addition(m), lambda m=modulus: fourier_power(torch.ones(9, 2), m)):
            with pytest.raises(ValueError, match=f"modulus must be >= 2, got {modulus}"):
                call()
        with pytest.raises(ValueError, match=f"second must be >= 2, got {modulus}"):
            shared_characters(15, modulus)
        with pytest.raises(ValueError, match=f"first must be >= 2, got {modulus}"):
            shared_frequencies(modulus, 15)
        with pytest.raises(ValueError, match=f"modulus must be >= 2, got {modulus}"):
            character_overlaps(15, modulus, 30)
    with pytest.raises(ValueError, match=r"first\[1\] = 1 must be >= 2"):
        shared_characters(torch.tensor([5, 1]), 15)
    with pytest.raises(TypeError, match="first must be an integer or an int64 tensor, got torch.float32"):
        shared_characters(torch.tensor(5.0), 15)
    with pytest.raises(ValueError, match="vocabulary must be >= 7, a token for each residue of the modulus, got 6"):
        addition(7, 6)
    with pytest.raises(ValueError, match="vocabulary must be >= 21"):
        character_overlaps(15, 21, 20)
    with pytest.raises(ValueError, match="vocabulary must be >= 12"):
        fourier_power(torch.ones(11, 2), 12)
    with pytest.raises(ValueError, match=r"embedding must be \(..., V, width\) and not empty, got \(9,\)"):
        fourier_power(torch.ones(9), 3)
    with pytest.raises(ValueError, match="must be finite"):
        fourier_power(torch.full((9, 2), torch.nan), 3)
    for fraction in (0, 1, -0.2, 1.2, float("nan")):
        with pytest.raises(ValueError, match=r"fraction must lie in \(0, 1\), got"):
            split(50, fraction, [compute.generator(0)])
    with pytest.raises(ValueError, match="fraction must leave samples to learn from and to test on, got 0.01 of 10"):
        split(10, 0.01, [compute.generator(0)])
    with pytest.raises(ValueError, match="one generator a net, got none"):
        split(10, 0.5, [])
    with pytest.raises(ValueError, match=r"frequencies must lie in 1 … 7, got \[8\]"):
        power_share(torch.ones(7), [8])
