"""Exercise verdicts: ``check("02.3", my_function)`` says correct, incorrect (and why), or not attempted.

``verdict.py``    what a verdict is and how a notebook shows it
``attempt.py``    running a learner's code safely and comparing it with the truth and with named mistakes
``lesson_NN.py``  the exercises of one lesson: a function each, and the table ``EXERCISES``
"""

from importlib import import_module
from pkgutil import iter_modules

from labkit.checks.attempt import told
from labkit.checks.verdict import Exercise, NotAttempted, Verdict, Wrong, grading, strict

__all__ = ["Verdict", "check", "exercises"]


def check(id: str, answer: object) -> Verdict:
    """Judge a learner's answer (usually a function) to the exercise ``id``.

    It never raises because of the answer; ``LABKIT_STRICT=1`` makes anything but *correct* an AssertionError.
    Functions are called with float64 CPU tensors.

    Raises
        ValueError: no such exercise (a mistake in the notebook, not in the answer).

    >>> check("00.1", lambda w, v: w + v).status
    'incorrect'
    >>> check("00.1", None).status
    'not attempted'
    """
    try:
        exercise = exercises(id[:2])[id]
    except (KeyError, TypeError):
        raise ValueError(f"unknown exercise {id!r}, known: {', '.join(exercises())}") from None
    status, share = "incorrect", 0.0
    try:
        message = exercise.check(answer)
        status, share = "correct", 1.0
    except NotAttempted as unfinished:
        status, message = "not attempted", str(unfinished)
    except Wrong as wrong:
        message, share = str(wrong), wrong.share
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an object so odd that looking at it failed
        message = f"The check could not use your answer ({told(error)})."
    verdict = Verdict(id, status, message, exercise.points * share, exercise.points)
    if strict() and status != "correct":
        raise AssertionError(str(verdict))
    if grading():
        print(verdict)  # the value of the cell is the bare number: the reason goes with the feedback as output
    return verdict


def exercises(lesson: str = "") -> dict[str, Exercise]:
    """The exercises by id of one lesson ("02"), or of all lessons in their order."""
    files = sorted(file.name for file in iter_modules(__path__) if file.name.startswith(f"lesson_{lesson}"))
    return {id: it for file in files for id, it in import_module(f"{__name__}.{file}").EXERCISES.items()}
