"""labkit: mechanisms of deep-learning theory that one can touch.

A notebook imports from here what every lesson needs; a mechanism is imported from its own room,
for example ``from labkit.diagonal.penalty import q``. Names load on first use (PEP 562), so
``import labkit`` costs next to nothing beyond torch.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "check_environment": "compute",
    "use_profile": "compute",
    "Panel": "panel",
    "Slider": "panel",
    "LogSlider": "panel",
    "GridSlider": "panel",
    "Choice": "panel",
    "Challenge": "panel",
    "Prediction": "panel",
    "remember": "panel",
    "check": "checks",
}
_ROOMS = (
    "checks",
    "compute",
    "course",
    "data",
    "depth",
    "diagonal",
    "panel",
    "plots",
    "recovery",
    "results",
    "spectra",
    "sweep",
    "training",
    "transfer",
)

__all__ = [*_HOME, *_ROOMS]


def __getattr__(name):
    if name in _HOME:
        return getattr(import_module(f"labkit.{_HOME[name]}"), name)
    if name in _ROOMS:
        return import_module(f"labkit.{name}")
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
