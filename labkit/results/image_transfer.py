"""ResNet-18 from CIFAR-100 to few images, at paper scale (``labkit.transfer.images``): for a GPU, not shipped."""

from labkit import compute
from labkit.results import Recipe
from labkit.transfer.images import NORMS, SOURCES, TASKS, image_transfer, protocol


def recipe() -> Recipe:
    """Scales move fastest: the rows of one call share task and n, and are trained as few stacks.

    Seeds move before them: two processes that work on it at once begin with unlike nets.
    """
    seeds = compute.pick(quick=2, standard=3, full=5)
    n = compute.pick(quick=[10], standard=[30], full=[10, 30, 100, 300, 1000])
    kappa = compute.pick(quick=[0.5, 2.0], standard=[0.3, 1.0, 3.0], full=[0.3, 1.0, 3.0])
    scales = compute.pick(quick=[1.0], standard=[1.0], full=[0.5, 1.0, 2.0])
    grid = {
        "norm": compute.pick(quick=["frozen", "none"], standard=["frozen", "none"], full=list(NORMS)),
        "task": list(TASKS),
        "n": n,
        "source": compute.pick(quick=["pretrained"], standard=list(SOURCES), full=list(SOURCES)),
        "centered": [False, True],
        "gamma": compute.pick(quick=[1.0], standard=[0.1, 1.0], full=[0.1, 1.0]),
        "kappa": kappa,
        "weight_scale": scales,
    }
    rules = protocol()
    grid = {"batch": [rules.batch]} | grid  # what LABKIT_BATCH says is part of the result
    # Where nets are trained one by one a row is a call, so that a kill costs a row at most.
    batched = len(grid["gamma"]) * len(kappa) * len(scales) * seeds if rules.stack > 1 else 1
    return Recipe(image_transfer, grid, seeds, {}, batched, data=("cifar100", "svhn"))
