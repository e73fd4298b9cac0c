"""Exercise of lesson 00, start here."""

from labkit.checks.attempt import compare, seeded, uniform
from labkit.checks.verdict import Exercise


def beta(answer) -> str:
    """beta(w, v): what a path of two weights computes, f(x) = w v x."""
    generator = seeded(1)
    w, v = uniform(generator, -2, 2, 8), uniform(generator, -2, 2, 8)
    mistakes = {
        "That is the sum. The input passes both weights one after the other: they multiply.": w + v,
        "That is w squared: the second weight, v, does not appear.": w**2,
        "That is v squared: the first weight, w, does not appear.": v**2,
        "That is the first weight alone: the signal also passes v.": w,
        "That is the second weight alone: the signal also passes w.": v,
        "That loses the sign: beta is negative when w and v have opposite signs.": (w * v).abs(),
        "That is a quotient: a weight amplifies what it receives.": w / v,
    }
    compare(answer, w * v, mistakes, {}, w=w, v=v)
    return "Two weights in a row multiply, and that product is all the function sees."


EXERCISES = {
    "00.1": Exercise(points=1, minutes=2, difficulty=1, check=beta),
}
