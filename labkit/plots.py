"""The course's one drawing style and the pictures that recur.

Drawing functions are *keyed*: ``line(ax, "truth", x, y)`` makes the line the first time and moves it every
time after, so the same ``draw`` serves the first frame and the thousandth. A :class:`labkit.panel.Panel`
keeps the axes, and what did not change since the last frame, as a cached background: these functions leave an
artist alone when they are called with what it shows already.
"""

from contextlib import contextmanager

import matplotlib as mpl
import matplotlib.scale
import matplotlib.ticker
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.patches import Polygon
from matplotlib.path import Path

# Okabe and Ito's eight colors: told apart with every common color blindness.
INK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#1a1d24 #e69f00 #56b4e9 #009e73 #f0e442 #0072b2 #d55e00 #cc79a7".split()
)
GREY, MIST = "#6c7280", "#bcc0ca"
REGIME_COLORS = {"I": RED, "II": BLUE, "III": MIST, "IV": GREEN}
REGIME_TITLES = {
    "I": "rich\nstarts afresh",
    "II": "lazy\nreuses features",
    "III": "lazy\nstarts afresh",
    "IV": "rich\nand reusing",
}

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8eaee",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.color": INK,
    "lines.linewidth": 2,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.wspace": 0.06,
}


def shades(count):
    """Colors of an ordered family (features, sizes), from dark to light, never as light as the paper."""
    return [mpl.colors.to_hex(color) for color in mpl.colormaps["viridis"](np.linspace(0, 0.85, count))]


@contextmanager
def style():
    """The course's matplotlib settings, for the time of a ``with`` block."""
    with mpl.rc_context(STYLE):
        yield


def numbers(values):
    """Anything array-like, tensors on any device included, as a float numpy array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=float)


# --- keyed artists: made once, moved ever after -------------------------------------------------------


def _find(ax, key, kind=mpl.artist.Artist):
    """The artist with this key, or None; a key is one artist's, so another kind under it is the author's mistake."""
    artist = next((artist for artist in ax.get_children() if artist.get_gid() == key), None)
    if artist is not None and not isinstance(artist, kind):
        raise ValueError(f"the key {key!r} is that of a {type(artist).__name__} in these axes: choose another")
    return artist


def line(ax, key, x, y, **style):
    """A curve; x and y of shape (points,)."""
    artist = _find(ax, key, mpl.lines.Line2D)
    if artist is None:
        (artist,) = ax.plot([], [], gid=key, **{"color": INK, **style})
    x, y = numbers(x), numbers(y)
    if not (np.array_equal(artist.get_xdata(orig=True), x) and np.array_equal(artist.get_ydata(orig=True), y)):
        artist.set_data(x, y)
    if style.get("color", artist.get_color()) != artist.get_color():
        artist.set_color(style["color"])
    return artist


def lines(ax, key, x, ys, **style):
    """Many curves over one x (points,): ys (curves, points). ``colors=`` may be one color or one a curve."""
    artist = _find(ax, key, LineCollection)
    if artist is None:
        artist = LineCollection([], gid=key, **{"colors": MIST, "linewidths": 1.2, **style})
        ax.add_collection(artist, autolim=False)
    x, ys = numbers(x), numbers(ys)
    artist.set_segments(np.stack([np.broadcast_to(x, ys.shape), ys], axis=-1))
    return artist


def seed_curves(ax, key, x, ys, color=INK, **style):
    """Curves of all seeds over one x (points,), ys (seed, points): each of them pale, their median strong."""
    pale = 1 - 0.4 * (1 - np.array(mpl.colors.to_rgb(color)))
    lines(ax, f"{key} each", x, ys, colors=[pale], linewidths=1)
    return line(ax, f"{key} median", x, np.median(numbers(ys), axis=0), color=color, **style)


def spans(ax, key, y, edges, colors, **style):
    """Horizontal bars at heights y (rows,), in parts: edges (rows, parts + 1), colors one a part, or (rows, parts)."""
    artist, edges = _find(ax, key), numbers(edges)
    if artist is None:
        artist = LineCollection([], gid=key, **{"linewidths": 9, "capstyle": "butt", **style})
        ax.add_collection(artist, autolim=False)
    rows, parts = edges.shape[0], edges.shape[1] - 1
    x = np.stack([edges[:, :-1], edges[:, 1:]], axis=-1)  # (rows, parts, 2)
    height = np.broadcast_to(numbers(y)[:, None, None], x.shape)
    segments = np.stack([x, height], axis=-1).reshape(rows * parts, 2, 2)
    if not np.array_equal(numbers(artist.get_segments()).reshape(-1, 2, 2), segments):
        artist.set_segments(segments)
        artist.set_colors([mpl.colors.to_rgba(c) for c in np.broadcast_to(colors, (rows, parts)).ravel()])
    return artist


def dots(ax, key, x, y, **style):
    """Points without a line, each (points,)."""
    return line(ax, key, x, y, **{"linestyle": "none", "marker": "o", "markersize": 6, **style})


def area(ax, key, x, y, **style):
    """What lies between a curve and zero; x and y of shape (points,)."""
    x, y = numbers(x), numbers(y)
    corners = np.stack([np.concatenate([x[:1], x, x[-1:]]), np.concatenate([[0], y, [0]])], axis=-1)
    artist = _find(ax, key, Polygon)
    if artist is None:
        return ax.add_patch(Polygon(corners, gid=key, **{"color": MIST, "linewidth": 0, **style}))
    if not np.array_equal(artist.get_xy()[:-1], corners):  # a closed polygon repeats its first corner
        artist.set_xy(corners)
    return artist


def spectrum(ax, key, eigenvalues, edge, bins):
    """Eigenvalues (any shape) counted in bins (edges,): grey up to the edge of the noise, blue beyond it."""
    values, ends = numbers(eigenvalues), numbers(bins)
    for part, inside, color in (("bulk", values <= float(edge), MIST), ("out", values > float(edge), BLUE)):
        counts = np.histogram(values[inside], ends)[0]
        area(ax, f"{key} {part}", ends.repeat(2)[1:-1], counts.repeat(2), color=color)
    top = ax.get_ylim()[1]
    line(ax, f"{key} edge", [edge, edge], [0, 0.66 * top], linestyle="--", linewidth=1.5)
    return text(ax, f"{key} word", edge, 0.68 * top, "edge", ha="center", va="bottom")


def error_dots(ax, key, x, mean, error, **style):
    """Measured points with bars of ± one standard error, each (points,), on top of everything, `now` included."""
    x, mean, error = map(numbers, (x, mean, error))
    bars = np.stack([mean - error, mean + error, np.full_like(mean, np.nan)], axis=-1).ravel()
    line(ax, f"{key} bars", np.repeat(x, 3), bars, **{"zorder": 7, **style, "linewidth": 1.4})
    return dots(ax, f"{key} dots", x, mean, **{"markersize": 5, "zorder": 7, **style})


def now(ax, key, x, y):
    """Where the sliders stand: the same yellow dot in every picture."""
    style = {"markersize": 12, "color": YELLOW, "markeredgecolor": INK, "markeredgewidth": 1.6}
    style |= {"zorder": 6, "clip_on": False}  # whole, even on the border
    return dots(ax, key, np.atleast_1d(numbers(x)), np.atleast_1d(numbers(y)), **style)


def text(ax, key, x, y, words, **style):
    """Words at data coordinates (pass ``transform=ax.transAxes`` for axes fractions)."""
    artist = _find(ax, key, mpl.text.Text)
    if artist is None:
        artist = ax.text(0, 0, "", gid=key, **{"color": INK, "zorder": 5, "clip_on": False, **style})
    if artist.get_position() != (float(x), float(y)):
        artist.set_position((float(x), float(y)))
    artist.set_text(words)
    if style.get("color", artist.get_color()) != artist.get_color():
        artist.set_color(style["color"])
    return artist


def corner(ax, key, row, words, color=INK, x=0.98):
    """Bold words in a row (1 is the highest) of the upper right corner, ending at x of the width.

    Without a key (None) they never move and are part of the background: drawing words takes longer than curves, so
    the words stand there and only the number after them has a key.
    """
    y = 1 - 0.065 * row
    style = {"color": color, "transform": ax.transAxes, "ha": "right", "va": "center", "weight": "bold", "zorder": 5}
    return ax.text(x, y, words, **style) if key is None else text(ax, key, x, y, words, **style)


def named_lines(ax, key, x, ys, words, heights, colors, **style):
    """Rising curves over one x, ys (curves, points), each with its word where it reaches its height, if it does.

    There may be fewer curves than words: the other words wait. One color a curve.
    """
    x, ys = numbers(x), numbers(ys)
    lines(ax, key, x, ys, colors=colors, **{"linewidths": 2, **style})
    look = {"ha": "center", "va": "center", "weight": "bold", "bbox": {"fc": "w", "lw": 0, "pad": 1}}
    for i, (word, height, color) in enumerate(zip(words, heights, colors, strict=True)):
        there = i < len(ys) and ys[i, -1] > height
        place = x[np.argmax(ys[i] > height)] if there else x[0]
        text(ax, f"{key} {i}", place, height, word if there else "", color=color, **look)


def in_band(ax, key, x, upper, lower, words, least=1.5, **style):
    """Words where the band between two curves is widest on a log axis y, turned with the upper one; x, upper, lower
    (points,). No words where upper/lower is nowhere ``least``, or off the axes; not in the outer fifths of x.
    """
    x, upper, lower = numbers(x), numbers(upper), numbers(lower).clip(ax.get_ylim()[0])
    fifth = len(x) // 5
    i = fifth + int(np.argmax((upper / lower)[fifth : len(x) - fifth]))
    artist = text(ax, key, x[i], np.sqrt(upper[i] * lower[i]), words if upper[i] > least * lower[i] else "", **style)
    artist.set(ha="center", va="center", rotation_mode="anchor")
    (left, low), (right, high) = ax.transData.transform([(x[j], upper[j]) for j in (i - fifth // 4, i + fifth // 4)])
    artist.set_rotation(float(np.degrees(np.arctan2(high - low, right - left))))
    return artist


def stacked(ax, key, x, total, lower, words):
    """A falling curve on a log axis y, and below it two areas: ``lower`` and what is left; words for (rest, lower)."""
    area(ax, f"{key} rest", x, total, color="#b3e2d5")
    area(ax, f"{key} lower", x, numbers(lower).clip(1e-12), color="#f0d3e2")
    in_band(ax, f"{key} rest word", x, total, lower, words[0], color="#00674e", weight="bold")
    start, height = len(x) // 30, ax.get_ylim()[0] ** 0.8 * numbers(total)[0] ** 0.2
    there = numbers(lower)[len(x) // 3] > 2 * height  # the words are not longer than that
    text(ax, f"{key} lower word", numbers(x)[start], height, words[1] if there else "", color="#9b3d73", weight="bold")
    return line(ax, key, x, total)


def labels(ax, key, x, y, words, apart=0.1, **style):
    """A word beside each point (points,), below to the right, or above to the left where the axes end.

    Points nearer than ``apart`` (data units) would have their words over each other: those are left out.
    """
    places = np.stack([numbers(x), numbers(y)], axis=-1)
    gaps = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(len(places), np.inf))
    low, high = ax.get_ylim()
    for i, (word, (px, py), gap) in enumerate(zip(words, places, gaps.min(0), strict=True)):
        side = 1 if (py - low) / (high - low) > 0.2 else -1
        where = px + 0.02 * side * np.ptp(ax.get_xlim()), py - 0.04 * side * (high - low)
        beside = text(ax, f"{key} {i}", *where, word if gap > apart else "", va="center", **style)
        beside.set_horizontalalignment("left" if side > 0 else "right")


def arrows(ax, key, x, y, words, colors, shown, apart):
    """▼ at the places x (count,), falling, and height y, each under its word, where shown (count,) is true.

    Of those nearer than ``apart`` to the one before, only the first has its word: "3…" is 3 and what follows.
    """
    x, shown = numbers(x), np.asarray(shown, dtype=bool)
    near = np.append((-np.diff(x) < apart) & shown[1:], False)  # the next one is
    for i, (word, color) in enumerate(zip(words, colors, strict=True)):
        told = "▼" if i and near[i - 1] else f"{word}{'…' if near[i] else ''}\n▼"
        text(ax, f"{key} arrow {i}", x[i], y, told if shown[i] else "", ha="center", color=color)


def corners(ax, *words, x=0.98):
    """Words that never move, each with its color, one a row from the upper right corner down: see :func:`corner`."""
    for row, (word, color) in enumerate(words, 1):
        corner(ax, None, row, word, color, x)


def image(ax, key, rgb, extent):
    """A picture rgb (height, width, 3) in [0, 1], first row lowest, over extent (x0, x1, y0, y1) of linear axes."""
    pixels = (numbers(rgb).clip(0, 1) * 255).round().astype(np.uint8)
    artist = _find(ax, key, mpl.image.AxesImage)
    if artist is None:
        limits = {"xlim": ax.get_xlim(), "ylim": ax.get_ylim()}  # imshow would change them
        artist = ax.imshow(pixels, origin="lower", aspect=ax.get_aspect(), extent=extent, gid=key, zorder=0)
        ax.set(**limits)
    elif not np.array_equal(artist.get_array(), pixels):
        artist.set_data(pixels)
    return artist


def mosaic(ax, key, tiles, low, high):
    """Small grey pictures in rows and columns: tiles (rows, columns, height, width), ``low`` white, ``high`` black.

    Each takes one unit of the axes, which become (0, columns) × (0, rows) and bare; the first row is on top.
    """
    values = ((high - numbers(tiles)) / (high - low)).clip(0, 1)
    rows, columns, height, width = values.shape
    padded = np.ones((rows, columns, height + 1, width + 1))  # a gap of one white pixel
    padded[..., :height, :width] = values
    if _find(ax, key) is None:
        ax.set(xlim=(0, columns), ylim=(0, rows), xticks=[], yticks=[], aspect="equal")
        ax.spines[:].set_visible(False)
    pixels = padded.transpose(0, 2, 1, 3).reshape(rows * (height + 1), columns * (width + 1))[::-1]
    return image(ax, key, np.repeat(pixels[..., None], 3, -1), (0, columns, 0, rows))


def mosaics(figure, tiles, low, high):
    """A :func:`mosaic` a name, side by side in axes of their own: tiles is a dict name -> (rows, columns, h, w)."""
    if not figure.axes:
        widths = [each.shape[1] for each in tiles.values()]
        for ax, name in zip(figure.subplots(1, len(tiles), width_ratios=widths), tiles, strict=True):
            ax.set_title(name)
    for ax, each in zip(figure.axes, tiles.values(), strict=True):
        mosaic(ax, "tiles", each, low, high)


# black words stay readable on all of them
CELL_COLORS = mpl.colors.ListedColormap(mpl.colormaps["YlGnBu_r"](np.linspace(0.3, 1, 256)))


def cells(ax, key, values, shade, words="{:.2f}"):
    """A table as a map: values (rows, columns) as words, on cells from dark (shade 0) to light (1); row 0 is lowest."""
    values, shade = numbers(values), numbers(shade).clip(0, 1)
    artist = _find(ax, key, mpl.collections.QuadMesh)
    if artist is None:
        edges = (np.arange(size + 1) - 0.5 for size in values.shape[::-1])
        ax.pcolormesh(*edges, shade, cmap=CELL_COLORS, vmin=0, vmax=1, gid=key, zorder=0)
    elif not np.array_equal(artist.get_array(), shade):
        artist.set_array(shade)
    for (row, column), value in np.ndenumerate(values):
        told = words.format(value).replace("-", "−")
        text(ax, f"{key} {row} {column}", column, row, told, ha="center", va="center")


def signed_rgb(values):
    """Colors of values in [-1, 1]: blue below zero, white at zero, orange-red above; (...) → (..., 3)."""
    v = numbers(values).clip(-1, 1)[..., None]
    low, high = (np.array(mpl.colors.to_rgb(color)) for color in (BLUE, RED))
    return 1 + np.maximum(v, 0) * (high - 1) + np.maximum(-v, 0) * (low - 1)


def contours(ax, key, x, y, z, levels, words="{:g}", label_y=None, **style):
    """Level lines of z (len(y), len(x)), part of the map: drawn anew only when z changed.

    Each is labeled where it crosses the height nearest to label_y (default: the middle), well inside the axes.
    """
    x, y, z, old = numbers(x), numbers(y), numbers(z), _find(ax, key)
    if old is not None:
        if np.array_equal(old.height, z):
            return
        old.remove()  # takes its labels along
    levels = [level for level in levels if z.min() < level < z.max()] or [np.inf]
    drawn = ax.contour(x, y, z, levels, **{"colors": INK, "linewidths": 1, **style})
    drawn.height = z
    label_y = y.mean() if label_y is None else label_y
    spots = []
    for level in levels:
        row, column = np.nonzero((z[:, :-1] < level) != (z[:, 1:] < level))
        inside = np.abs(x[column] - (x[0] + x[-1]) / 2) < 0.45 * abs(x[-1] - x[0])
        inside &= np.abs(y[row] - (y[0] + y[-1]) / 2) < 0.48 * abs(y[-1] - y[0])
        row, column = row[inside], column[inside]
        if len(row):
            nearest = np.argmin(np.abs(y[row] - label_y))
            spots.append((x[column[nearest]], y[row[nearest]]))
    labels = ax.clabel(drawn, fmt=lambda v: words.format(v).replace("-", "−"), fontsize=8.5, manual=spots)
    for label in labels or ():
        label.set_rotation((label.get_rotation() + 89) % 180 - 89)  # never read downwards
    for artist, zorder in ((drawn, 0.5), *((label, 0.6) for label in labels or ())):
        artist.set(gid=key, zorder=zorder)


def stems(ax, key, height, positions=None, **style):
    """Coefficients as stems from zero with a head: height (dim,)."""
    height = numbers(height)
    positions = np.arange(len(height)) if positions is None else numbers(positions)
    color = style.pop("color", INK)
    gap = np.full_like(height, np.nan)
    x = np.repeat(positions, 3)
    y = np.stack([np.zeros_like(height), height, gap], axis=-1).ravel()
    stick = {k: style[k] for k in ("zorder", "alpha") if k in style}
    line(ax, f"{key} sticks", x, y, color=color, linewidth=1.4, **stick)
    return dots(ax, key, positions, height, color=color, **style)


def bands(ax, key, positions, top=1.0, width=14, color="#f6dcae"):
    """Upright bands behind everything, from zero to ``top`` at positions (count,), ``width`` points wide."""
    at, height = np.repeat(numbers(positions), 3), np.tile([0, top, np.nan], len(positions))
    return line(ax, key, at, height, color=color, linewidth=width, zorder=0, solid_capstyle="butt")


def seed_stems(ax, key, positions, heights, color=INK):
    """Coefficients of all seeds, heights (seed, dim), as small dots at positions (dim,), and their means as stems."""
    each = np.broadcast_to(numbers(positions), np.shape(heights)).ravel()
    dots(ax, f"{key} each", each, numbers(heights).ravel(), color=color, markersize=3, alpha=0.4)
    return stems(ax, key, numbers(heights).mean(0), positions, color=color)


def curve_and_dots(ax, key, curve, points=None, **style):
    """Theory as a line, simulation as dots with error bars.

    curve = (x, y); points = (x, mean, standard error), drawn at ± one standard error, or None while the
    simulation is still running.
    """
    color = style.pop("color", INK)
    line(ax, f"{key} theory", *curve, color=color, **style)
    points = (np.empty(0),) * 3 if points is None else points
    return error_dots(ax, key, *points, color=color, markeredgecolor="white", markersize=6, zorder=2)


def named_dots(ax, names, mean, error, colors):
    """One dot a name along x, mean ± one standard error, each (names,), with its number beside it."""
    ax.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    for i, (m, e, color) in enumerate(zip(numbers(mean), numbers(error), colors, strict=True)):
        error_dots(ax, names[i], [i], [m], [e], color=color)
        text(ax, f"{names[i]} number", i + 0.12, m, f"{m:.3g}".replace("-", "−"), va="center", color=color)


def averages(values):
    """Mean over the seeds, the last axis, and its standard error; seeds with a nan (a net diverged) are left out."""
    values = numbers(values)
    values = values[..., np.isfinite(values).all(tuple(range(values.ndim - 1)))]
    return values.mean(-1), values.std(-1, ddof=1) / values.shape[-1] ** 0.5


def seeds(ax, key, values, color, each=True, **style):
    """Values (stop, seed) over x = 0, 1, ...: their mean ± one standard error, and with ``each`` a thin line a seed."""
    values, at = numbers(values), np.arange(len(values))
    lines(ax, f"{key} each", at, values.T[: values.shape[1] if each else 0], linewidths=0.8)
    mean, error = averages(values)
    return curve_and_dots(ax, key, (at, mean), (at, mean, error), color=color, **style)


def named_seeds(ax, names, values, colors):
    """`named_dots` of values (names, seed), with a small dot for each seed beside the mean."""
    values = numbers(values)
    at = np.arange(len(names)).repeat(values.shape[1]) - 0.15
    dots(ax, "each seed", at, values.ravel(), color=MIST, markersize=3)
    named_dots(ax, names, *averages(values), colors)


# --- paired differences: what seeds have in common drops out ---------------------------------------------

SEEN = 2.0  # standard errors; a smaller difference is not seen


def seen(differences):
    """Whether the mean over the seeds (seeds,) is more than `SEEN` standard errors away from zero; nan is left out.

    >>> seen([0.03, 0.05, 0.04]), seen([-0.03, 0.05, -0.04])
    (True, False)
    """
    mean, error = _mean_and_error(differences)
    return bool(abs(mean) > SEEN * error)


def gained(differences):
    """Whether the mean over the seeds (seeds,) is `seen`, and above zero.

    >>> gained([0.03, 0.05, 0.04]), gained([-0.03, -0.05, -0.04]), gained([-0.03, 0.05, 0.04])
    (True, False, False)
    """
    return seen(differences) and bool(_mean_and_error(differences)[0] > 0)


def _mean_and_error(values):
    """Over the seeds (seeds,) that are not nan; one seed alone has no error: nan."""
    values = numbers(values)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return (values.mean() if len(values) else np.nan), np.nan
    return values.mean(), values.std(ddof=1) / len(values) ** 0.5


def difference_words(differences, unit=1.0, digits=1):
    """Mean ± standard error over the seeds (seeds,), times ``unit``; "n.s." unless `seen`; nan is left out.

    >>> difference_words([0.03, 0.05, 0.04], unit=100)
    '+4.0 ± 0.6'
    >>> difference_words([-0.03, 0.05, -0.04], unit=100)
    '−0.7 ± 2.8 (n.s.)'
    """
    mean, error = _mean_and_error(unit * numbers(differences))
    words = f"{mean:+.{digits}f} ± {error:.{digits}f}{'' if seen(differences) else ' (n.s.)'}"
    return words.replace("-", "−")


def paired_axes(ax, names, low, high, title="", unit=""):
    """The setup of :func:`paired`: a row a name, the first on top, and a line at zero."""
    frame(ax, title, unit, "", (low, high), (-0.6, len(names) - 0.4), yticks=range(len(names)), yticklabels=names[::-1])
    ax.axvline(0, color=GREY, linewidth=1.2)
    ax.grid(False, axis="y")


def paired(ax, key, differences, colors, unit=1.0, digits=1, first=0, every=1):
    """Rows of differences (rows, seeds): each seed as a dot, the mean with a bar of `SEEN` standard errors, in words.

    A bar that crosses zero is "n.s.". A row without numbers (nan) stays empty; seeds beyond the axes are not drawn.
    They take the axes' row ``first`` and ``every`` so many after it.
    """
    low, high = ax.get_xlim()
    top = round(ax.get_ylim()[1] - 0.6)
    for row, (values, color) in enumerate(zip(differences, colors, strict=True)):
        values, height = unit * numbers(values), top - first - every * row
        mean, error = _mean_and_error(values)
        spread = height - 0.15 - 0.1 * (np.arange(len(values)) % 3)
        shown = (values > low) & (values < high)
        dots(ax, f"{key} {row} seeds", values[shown], spread[shown], color=color, markersize=3, alpha=0.55)
        spans(ax, f"{key} {row} bar", [height], [[mean - SEEN * error, mean + SEEN * error]], [color], linewidths=4)
        dots(ax, f"{key} {row} mean", [mean], [height], color=color, markersize=8, markeredgecolor="white")
        words = difference_words(values, unit=1, digits=digits) if np.isfinite(mean) else ""
        text(ax, f"{key} {row} words", high, height + 0.16, words, color=color, ha="right", va="bottom", weight="bold")


def effect_axes(figure, stops, label, rows, low, high, control="from scratch"):
    """The setup of :func:`effect`: accuracy over ``stops``, ``rows`` of differences, and how the control is called."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
    ticks = (0.4, 0.6, 0.8, 1)
    stop_axis(frame(left, "Accuracy on new images", label, ylim=(0.4, 1.25), yticks=ticks).xaxis, stops)
    corner(left, None, 2, f"◆ {control}", PINK)
    names = [*rows, *(f"{control},\n{row}" for row in rows)]
    paired_axes(right, names, low, high, "Differences, seed by seed", "points of accuracy  (◇: mean with plain output)")


def effect(figure, result):
    """What a scale does: result holds accuracies (stops, seeds) "found", of the same with "plain" output, and of a
    "control"; and "here", the present stop. Where found is centered, the plain output is its shadow.

    Right: the accuracy at a stop minus that at the next one, seed by seed, of what was found and of the control.
    """
    (left, right), here = figure.axes, result["here"]
    found, plain, control = (numbers(result[name]) for name in ("found", "plain", "control"))
    same = np.array_equal(found, plain, equal_nan=True)
    seeds(left, "found", found, BLUE)
    corner(left, "way", 1, "pretrained, plain" if same else "pretrained, centered", BLUE)
    corner(left, "shadow", 3, "" if same else "- - pretrained, plain", GREY)
    shadow = np.full(len(plain), np.nan) if same else np.nanmean(plain, 1)
    line(left, "plain", np.arange(len(plain)), shadow, color=GREY, linestyle="--")
    dots(left, "control", np.arange(len(control)), np.nanmean(control, 1), marker="D", color=PINK)
    now(left, "now", here, np.nanmean(found[here]))
    gains = -np.diff(np.stack([found, control]), axis=1)  # (2, stops − 1, seeds)
    paired(right, "gain", gains.reshape(-1, gains.shape[-1]), np.repeat([BLUE, PINK], gains.shape[1]), 100)
    height = 2 * gains.shape[1] - 1 - np.arange(gains.shape[1])
    dots(right, "plain", -100 * np.diff(shadow), height, marker="D", color="white", markeredgecolor=GREY, zorder=1.5)


DIMENSIONS = {"pr_before": ("PR before", GREY), "pr_after": ("PR after", GREEN), "ensd": ("ENSD", BLUE)}


def dimensions_axes(figure, stops, label, name, tasks, cloud):
    """The setup of :func:`dimensions`; ``stops``: three, the middle one is the reference of the others.

    cloud: for the first and the last stop, PR after / PR before and points over the middle one, each (tasks, settings).
    """
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    stop_axis(frame(left, "Dimensions of the features", label, ylim=(0, 11)).xaxis, stops)
    words = "Compressed, and better?", "PR after / PR before", f"points of accuracy over {name} = {stops[1]:g}"
    frame(right, *words, (0.48, 1.22), (-5.5, 4.5))
    right.axhline(0, color=GREY, linewidth=1)
    kinds = [(f"{symbol} {task}", INK) for symbol, task in zip("●■◆", tasks, strict=True)]
    colors = {f"{name} = {stop:g}": color for stop, color in zip(stops[::2], (ORANGE, PINK), strict=True)}
    corners(left, *DIMENSIONS.values())
    corners(right, *colors.items(), *kinds)
    for color, (ratio, points) in zip(colors.values(), cloud, strict=True):
        for marker, *spots in zip("osD", numbers(ratio), numbers(points), strict=True):
            right.plot(*spots, marker, color=color, markersize=5)


def dimensions(figure, result):
    """`DIMENSIONS` over the stops, each (stops, seeds), and "spot", where in the cloud the setting is."""
    for name, (_, color) in DIMENSIONS.items():
        mean, error = averages(result[name])
        at = np.arange(len(mean))
        curve_and_dots(figure.axes[0], name, (at, mean), (at, mean, error), color=color)
    now(figure.axes[1], "now", *result["spot"])


# --- a covariance: its correlations and its spectrum, which may tell two stories -----------------------


def covariance_axes(figure, name="Σ", shown=16):
    """The setup of :func:`covariance`: a square for the correlations, axes for the first eigenvalues."""
    left, right = figure.subplots(1, 2, width_ratios=(0.72, 1))
    bare = {"aspect": "equal", "xticks": [], "yticks": []}
    frame(left, "How the coordinates correlate", "blue −1, white 0, orange 1", "", (0, 1), (0, 1), **bare)
    words = f"Spectrum of {name}", "eigenvalue, the largest first", "share of the variance"
    frame(right, *words, (0.3, shown + 0.7), (0, 1))
    told = "mean |correlation|", "energy off the diagonal", "effective rank", "(dashed: all eigenvalues equal)"
    for row, word in enumerate(told, 1):
        corner(right, None, row, word, INK if row < 4 else GREY, x=0.84)


def covariance(figure, correlations, share, mean, energy, rank, shown=16):
    """Correlations (d, d) and spectrum: share (d,) of the variance of each eigenvalue, and three measures of both."""
    (left, right), flat, share = figure.axes, 1 / len(share), numbers(share)[:shown]
    image(left, "correlations", signed_rgb(numbers(correlations)[::-1]), (0, 1, 0, 1))
    stems(right, "spectrum", share, 1 + np.arange(len(share)), color=BLUE)
    line(right, "flat", [0, shown + 1], [flat, flat], color=GREY, linestyle="--", linewidth=1.5)
    for row, words in enumerate((f"{mean:.2f}", f"{energy:.0%}", f"{rank:.1f}"), 1):
        corner(right, f"measure {row}", row, words, BLUE)


# --- powers: means over seeds on two logarithmic axes, and the exponent ---------------------------------


def power_axes(*parts):
    """The setup of :func:`power`: axes side by side.

    parts: of each axes (title, label of y, label of x, stops of x, limits of y, words, guide). words: of each row of
    the corner what stands before an exponent there, and its color. guide: an exponent, drawn as thin lines, or None.
    """

    def setup(figure):
        for ax, part in zip(np.atleast_1d(figure.subplots(1, len(parts))), parts, strict=True):
            title, y, x, stops, limits, words, guide = part
            log_axis(ax.xaxis, stops)
            frame(ax, title, x, y, (stops[0] / 1.3, stops[-1] * 1.3), limits, yscale="log")
            for row, (word, color) in enumerate(words, 1):
                corner(ax, None, row, word, color, x=0.7)
            if guide is not None:
                at = np.array(ax.get_xlim())
                for height in np.geomspace(*limits, 7):
                    ax.plot(at, height * (at / at.prod() ** 0.5) ** guide, color=MIST, linestyle="--", linewidth=1)

    return setup


def power(ax, key, x, mean, error, exponent, color=INK, row=1):
    """Means with bars of one standard error, and the exponent, in words, in a row of the corner."""
    curve_and_dots(ax, key, (x, mean), (x, mean, error), color=color)
    corner(ax, f"{key} exponent", row, exponent, color)


# --- axes ---------------------------------------------------------------------------------------------


def frame(ax, title="", x="", y="", xlim=None, ylim=None, **more):
    """Title, labels and limits in one line; any ``Axes.set`` keyword (xscale, xticks ...) may follow."""
    ax.set(title=title, xlabel=x, ylabel=y, **more)
    ax.set(xlim=xlim, ylim=ylim)
    return ax


def phases(ax, title, first, second):
    """Make axes for accuracy against step: ``first`` steps, a line, and ``second`` more that count from 0 again."""
    ticks, ends = (0, first // 2, first, first + second // 2, first + second), f"{first} | 0"
    frame(ax, title, "step", "", (0, ticks[-1]), (0, 1.15), xticks=ticks)
    ax.set_xticklabels([0, first // 2, ends, second // 2, second])
    ax.axvline(first, color=GREY, linewidth=1)


_FLOOR, _STRIP = -3.0, 1 / 3  # a log axis in 1+λ ends at 1e-3; the strip left of it is λ = −1 itself


def one_plus_log(lam):
    """Position of λ on an axis logarithmic in 1+λ down to 1e-3; exactly −1 has a strip of its own at the left."""
    gap = 1 + numbers(lam)
    return np.where(gap > 0, np.log10(np.maximum(gap, 10**_FLOOR)), _FLOOR - _STRIP)


def lam_at(position):
    """The inverse of :func:`one_plus_log`: λ at a position, −1 in the left half of the strip."""
    position = numbers(position)
    return np.where(position < _FLOOR - _STRIP / 2, -1.0, 10.0**position - 1)


def one_plus_log_axis(ax, ticks=(-1, -0.999, -0.99, -0.9, 0, 1)):
    """Make x an axis in :func:`one_plus_log`, from λ = −1 to 1."""
    ax.set_xlim(one_plus_log([-1, 1]))
    ax.set_xticks(one_plus_log(ticks), [f"{lam:g}".replace("-", "−") for lam in ticks])


def power_axis(axis, low, high, every=1):
    """Make a linear axis in log₁₀ of a quantity read as powers of ten, from 10^low to 10^high."""
    powers = np.arange(np.ceil(low), high + 1e-9, every)
    axis.set_ticks(powers, [f"$10^{{{power:.0f}}}$" for power in powers])
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})


def log_axis(axis, ticks):
    """Make an axis logarithmic, labeled at these ticks only."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_minor_locator(mpl.ticker.NullLocator())


def stop_axis(axis, stops):
    """Make a linear axis over the stops of a grid: the positions are 0, 1, ..., whatever the values."""
    axis.set_ticks(range(len(stops)), [f"{stop:g}".replace("-", "−") for stop in stops])
    axis.axes.set(**{f"{axis.axis_name}lim": (-0.3, len(stops) - 0.7)})


def root_axis(ax, high, ticks):
    """Make y an error axis in √: it has a zero, as a log axis has not, and still tells small errors apart."""
    ax.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    ax.set(ylim=(0, high), yticks=ticks, yticklabels=[f"{tick:g}" for tick in ticks])


def asinh_axis(axis, ticks, linear):
    """Make an axis of both signs: linear up to about ``linear``, logarithmic beyond, from the first to the last tick.

    Its zero is drawn as a line.
    """
    ax, name = axis.axes, axis.axis_name
    ax.set(**{f"{name}scale": mpl.scale.AsinhScale(axis, linear_width=linear)})
    axis.set_ticks(ticks, [f"{tick:+g}".replace("-", "−") if tick else "0" for tick in ticks])
    axis.set_minor_locator(mpl.ticker.NullLocator())
    ax.set(**{f"{name}lim": (ticks[0], ticks[-1])})
    (ax.axhline if name == "y" else ax.axvline)(0, color=GREY, linewidth=1)


# --- the regime triangle ------------------------------------------------------------------------------

_CORNERS = np.array([[0.0, 0.0], [0.5, np.sqrt(3) / 2], [1.0, 0.0]])  # I, II, III


def regime_rgb(weights):
    """Color of barycentric weights (..., 3) in the order I, II, III: (..., 3).

    A quadratic blend: pure hues in the corners, the green of regime IV half way between I and II, so a
    color names a place in the triangle.
    """
    w = numbers(weights)
    one, two, three, four = (np.array(mpl.colors.to_rgb(REGIME_COLORS[name])) for name in ("I", "II", "III", "IV"))
    edge = 2 * four - (one + two) / 2  # the control point that makes the mid-edge exactly green
    w1, w2, w3 = (w[..., i, None] for i in range(3))
    mixed = w1**2 * one + w2**2 * two + w3**2 * three + 2 * w1 * w2 * edge
    return (mixed + w1 * w3 * (one + three) + w2 * w3 * (two + three)).clip(0, 1)


def triangle_xy(weights):
    """Place of barycentric weights (..., 3) in the drawn triangle: x, y, each (...)."""
    place = numbers(weights) @ _CORNERS
    return place[..., 0], place[..., 1]


def regime_triangle(ax, title="Where this network sits", pixels=240):
    """The triangle of all attainable (ℓ, PD), colored by regime: the fixed part of the picture."""
    ax.set(aspect="equal", xlim=(-0.22, 1.22), ylim=(-0.16, 1.06))
    ax.set_axis_off()
    ax.set_title(title)
    height = _CORNERS[1, 1]
    x, y = np.meshgrid(np.linspace(0, 1, pixels), np.linspace(0, height, pixels))
    two = y / height
    weights = np.stack([1 - x - two / 2, two, x - two / 2], axis=-1)
    fill = ax.imshow(regime_rgb(weights.clip(0)), origin="lower", extent=(0, 1, 0, height), aspect="equal", zorder=0)
    fill.set_clip_path(Path([*_CORNERS, _CORNERS[0]], closed=True), ax.transData)
    ax.set(xlim=(-0.22, 1.22), ylim=(-0.16, 1.06))
    ax.plot(*np.vstack([_CORNERS, _CORNERS[0]]).T, color=GREY, linewidth=1.2)
    below, above = {"va": "top", "fontweight": "bold"}, {"va": "bottom", "fontweight": "bold"}
    ax.text(0, -0.03, f"I  {REGIME_TITLES['I']}", ha="center", **below)
    ax.text(1, -0.03, f"III  {REGIME_TITLES['III']}", ha="center", **below)
    ax.text(0.5, height + 0.03, f"II  {REGIME_TITLES['II']}", ha="center", **above)
    ax.text(0.17, height / 2, f"IV  {REGIME_TITLES['IV']}", ha="right", fontweight="bold", va="center")
