"""How large the features are that a fresh readout multiplies: lesson 06 says that pretraining keeps their order."""

import torch

from labkit.transfer import digits as study


def test_pretraining_pulls_the_sizes_of_features_together_but_keeps_their_order():
    old = study.pretrain([0.2, 1.0, 5.0], 1.0, [0, 0, 0], max_steps=200)
    (_, _), (x, _) = study.few_shots(old, "subset", 3)
    with torch.no_grad():
        before, after = (old.net.features(p, x).square().mean((1, 2)).sqrt() for p in (old.initial, old.phase.params))
    torch.testing.assert_close(before / before[1], torch.tensor([0.2, 1.0, 5.0]), rtol=1e-4, atol=0)
    assert after[0] < after[1] < after[2] and after[2] / after[0] < 0.5 * before[2] / before[0]
