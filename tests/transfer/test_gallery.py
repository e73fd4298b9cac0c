"""Images to look at: the first of each class, where the class says they are."""

import torch

from labkit.data import digits
from labkit.transfer.digits import gallery


def test_every_tile_is_a_training_image_of_its_class():
    shown = gallery(3, n_per_class=2)
    train, _ = digits.pretraining(3)
    for turn in range(4):
        for digit in range(7):
            same = (train.x[:, 0] == shown["pretraining"][turn, digit]).all((1, 2))
            assert train.y[same].tolist() == [digit + 7 * turn]
    for task in digits.TASKS:
        train, _ = digits.finetuning(task, 2, 3)
        tiles = shown[task].transpose(0, 1).flatten(0, 1)  # by class
        assert torch.equal(tiles, train.x[torch.argsort(train.y, stable=True), 0])
