"""Recurring pictures: colors, scales, and artists that are made once and then only move."""

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit import plots


@pytest.fixture
def ax():
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def test_regime_colors_are_pure_in_the_corners_and_green_half_way_from_one_to_two():
    weights = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]])
    hues = [mpl.colors.to_rgb(plots.REGIME_COLORS[name]) for name in ("I", "II", "III", "IV")]
    assert np.abs(plots.regime_rgb(weights) - hues).max() < 1e-12


def test_regime_colors_change_smoothly_and_stay_colors():
    weights = np.random.default_rng(0).dirichlet(np.ones(3), 5000)
    near = weights + 1e-4 * (np.array([1.0, -1, 0]))
    rgb = plots.regime_rgb(weights)
    assert rgb.min() >= 0 and rgb.max() <= 1 and np.abs(plots.regime_rgb(near) - rgb).max() < 1e-3


def test_triangle_places_are_the_weighted_corners():
    assert np.allclose(plots.triangle_xy(np.eye(3)), [[0, 0.5, 1], [0, np.sqrt(3) / 2, 0]])
    assert np.allclose(plots.triangle_xy([1 / 3, 1 / 3, 1 / 3]), [0.5, np.sqrt(3) / 6])


def test_one_plus_log_is_a_decade_a_unit_with_a_strip_for_minus_one():
    assert np.allclose(plots.one_plus_log([-0.999, -0.99, -0.9, 0]), [-3, -2, -1, 0])
    assert plots.one_plus_log(-1) < plots.one_plus_log(-0.9999) == -3
    lam = np.array([-1, -0.999, -0.7, 0, 0.4, 1])
    assert np.allclose(plots.lam_at(plots.one_plus_log(lam)), lam, atol=1e-15)


def test_root_axis_has_a_zero_and_stretches_what_is_small(ax):
    plots.root_axis(ax, 4, (0, 0.25, 1))
    ax.figure.canvas.draw()
    height = ax.transAxes.inverted().transform(ax.transData.transform([[0, y] for y in (0, 0.25, 1, 4)]))[:, 1]
    assert np.allclose(height, [0, 0.25, 0.5, 1])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "0.25", "1"]


def test_log_axis_is_labeled_where_it_was_asked_to_be(ax):
    plots.log_axis(ax.xaxis, (5, 10, 50))
    ax.set_xlim(5, 50)
    ax.figure.canvas.draw()
    place = ax.transAxes.inverted().transform(ax.transData.transform([[x, 0] for x in (5, 5 * 10**0.5, 50)]))[:, 0]
    assert np.allclose(place, [0, 0.5, 1]) and len(ax.get_xticks(minor=True)) == 0
    assert [label.get_text() for label in ax.get_xticklabels()] == ["5", "10", "50"]


def test_stops_stand_one_apart_whatever_their_values(ax):
    plots.stop_axis(ax.xaxis, [-0.99, 0, 0.9])
    ax.figure.canvas.draw()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["−0.99", "0", "0.9"]
    assert list(ax.get_xticks()) == [0, 1, 2] and ax.get_xlim() == (-0.3, 2.3)


def test_averages_leave_out_the_seeds_that_diverged():
    values = np.array([[1.0, 2, np.nan, 6], [5, 5, 5, 5]])
    mean, error = plots.averages(values)
    assert np.allclose(mean, [3, 5]) and np.allclose(error, [7**0.5 / 3**0.5, 0])


def test_seeds_are_drawn_as_lines_under_their_mean(ax):
    values = np.random.default_rng(0).normal(size=(5, 7))
    for each, count in ((True, 7), (False, 0)):
        plots.seeds(ax, "a", values, "red", each=each)
        found = {artist.get_gid(): artist for artist in ax.get_children()}
        segments = found["a each"].get_segments()
        assert len(segments) == count and all(np.allclose(s[:, 1], v) for s, v in zip(segments, values.T, strict=each))
        assert np.allclose(found["a dots"].get_ydata(), values.mean(1))
    plots.named_seeds(ax, list("bcdef"), values, ["red"] * 5)
    found = {artist.get_gid(): artist for artist in ax.get_children()}
    assert [float(found[f"{name} dots"].get_ydata()[0]) for name in "bcdef"] == values.mean(1).tolist()
    assert np.array_equal(np.sort(found["each seed"].get_ydata()), np.sort(values.ravel()))


def everything(ax, shift):
    x = torch.linspace(0, 1, 20, dtype=torch.float64)
    plots.line(ax, "line", x, x + shift)
    plots.lines(ax, "lines", x, torch.stack([x, x * shift]))
    plots.dots(ax, "dots", x, x - shift)
    plots.spans(ax, "spans", [0, 1], [[0, shift, 1], [0, 0.5, 1]], ["red", "blue"])
    plots.now(ax, "now", 0.5, shift)
    plots.text(ax, "text", 0.5, shift, f"{shift}")
    plots.stems(ax, "stems", x * shift)
    plots.area(ax, "area", x, x * shift)
    plots.curve_and_dots(ax, "both", (x, x), (x[:3], x[:3], x[:3] * shift))
    plots.image(ax, "image", torch.ones(4, 4, 3) * shift, (0, 1, 0, 1))
    plots.contours(ax, "contours", x, x, x[:, None] * x * shift, (0.05, 0.1))


def test_artists_are_made_once_and_then_moved(ax):
    everything(ax, 0.5)
    before = len(ax.get_children())
    everything(ax, 0.7)
    assert len(ax.get_children()) == before
    assert plots._find(ax, "line").get_ydata()[0] == 0.7
    assert plots._find(ax, "text").get_text() == "0.7"
    assert plots._find(ax, "image").get_array()[0, 0, 0] == round(0.7 * 255)
    assert plots._find(ax, "lines").get_segments()[1][-1, 1] == 0.7
    assert plots._find(ax, "area").get_xy()[-3:].tolist() == [[1, 0.7], [1, 0], [0, 0]]  # the curve, then back on zero


def test_contours_are_drawn_anew_only_when_the_height_changed(ax):
    everything(ax, 0.5)
    same = plots._find(ax, "contours")
    everything(ax, 0.5)
    assert plots._find(ax, "contours") is same
    everything(ax, 0.6)
    assert plots._find(ax, "contours") is not same


def test_contours_label_each_level_on_its_line_and_survive_a_flat_map(ax):
    x = np.linspace(0, 1, 50)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    plots.contours(ax, "c", x, x, np.broadcast_to(x, (50, 50)), (0.25, 0.75, 9), "z = {:g}", label_y=0.2)
    labels = {t.get_text(): t.get_position() for t in ax.texts}
    assert set(labels) == {"z = 0.25", "z = 0.75"}
    assert all(abs(x - float(words[4:])) < 0.03 and abs(y - 0.2) < 0.03 for words, (x, y) in labels.items())
    plots.contours(ax, "c", x, x, np.zeros((50, 50)), (0.25,))
    assert not ax.texts


def test_error_bars_span_one_standard_error(ax):
    plots.curve_and_dots(ax, "k", ([0, 1], [0, 1]), ([0.5], [2.0], [0.25]))
    assert plots._find(ax, "k bars").get_ydata()[:2].tolist() == [1.75, 2.25]
    plots.curve_and_dots(ax, "k", ([0, 1], [0, 1]))  # the simulation of a new setting is still running
    assert len(plots._find(ax, "k dots").get_xdata()) == 0


def test_named_dots_say_their_numbers():
    ax = Figure().add_subplot()
    for shift in (1, -2):
        plots.named_dots(ax, ["one step", "b"], torch.tensor([0.5, 0.25]) * shift, [0.1, 0.0], [plots.RED, plots.BLUE])
    assert [text.get_text() for text in ax.texts] == ["−1", "−0.5"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["one\nstep", "b"]
    assert plots._find(ax, "one step bars").get_ydata()[:2].tolist() == [-1.1, -0.9]


def test_spans_are_bars_in_parts(ax):
    bars = plots.spans(ax, "bars", [3, 1], [[0, 2, 5], [1, 1, 4]], ["red", "blue"])
    expected = [[[0, 3], [2, 3]], [[2, 3], [5, 3]], [[1, 1], [1, 1]], [[1, 1], [4, 1]]]
    assert np.allclose(bars.get_segments(), expected)
    colors = [mpl.colors.to_hex(color) for color in bars.get_colors()]
    assert colors == ["#ff0000", "#0000ff"] * 2
    moved = plots.spans(ax, "bars", [3, 1], [[0, 1], [1, 2]], [["red"], ["blue"]])
    assert moved is bars and np.allclose(bars.get_segments(), [[[0, 3], [1, 3]], [[1, 1], [2, 1]]])
    assert [mpl.colors.to_hex(color) for color in bars.get_colors()] == ["#ff0000", "#0000ff"]


def test_error_dots_lie_above_the_current_point(ax):
    plots.now(ax, "now", 1.0, 2.0)
    dots = plots.error_dots(ax, "seen", torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([0.5]))
    (bars,) = (artist for artist in ax.lines if artist.get_gid() == "seen bars")
    assert dots.get_zorder() == bars.get_zorder() > plots.now(ax, "now", 1.0, 2.0).get_zorder()
    assert bars.get_ydata()[:2].tolist() == [1.5, 2.5]


def test_spectrum_counts_below_and_beyond_the_edge(ax):
    """Outlines have the counts as heights; what lies outside the bins is left out; a second call moves them."""
    ax.set_ylim(0, 10)
    for values, bulk, out in (([0.1, 0.2, 1.4, 1.6, 7.0], (2, 1), (0, 1)), ([1.1, 1.2, 1.3], (0, 3), (0, 0))):
        plots.spectrum(ax, "C", torch.tensor(values), torch.tensor(1.5), [0, 1, 2])
        for part, (first, second) in (("bulk", bulk), ("out", out)):
            (drawn,) = (patch for patch in ax.patches if patch.get_gid() == f"C {part}")
            assert drawn.get_xy()[1:5].tolist() == [[0, first], [1, first], [1, second], [2, second]]
    assert len(ax.patches) == 2 and ax.lines[0].get_xdata().tolist() == [1.5, 1.5]


def test_shades_fall_in_grey_too():
    """Ordered families stay ordered without color, and are told apart from white."""
    for count in (1, 2, 6, 12):
        rgb = np.array([mpl.colors.to_rgb(color) for color in plots.shades(count)])
        grey = rgb @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(grey) > 0).all() and grey.max() < 0.85


def test_numbers_takes_tensors_that_carry_a_gradient():
    assert plots.numbers(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_style_is_left_behind():
    before = dict(mpl.rcParams)
    with plots.style():
        assert mpl.rcParams["axes.titlelocation"] == "left"
    assert dict(mpl.rcParams) == before


def test_labels_that_would_cover_each_other_are_left_out():
    ax = Figure().add_subplot(xlim=(0, 1), ylim=(0, 1))
    plots.labels(ax, "stop", [0.1, 0.15, 0.8], [0.5, 0.5, 0.1], "abc")
    assert [text.get_text() for text in ax.texts] == ["", "", "c"]
    plots.labels(ax, "stop", [0.1, 0.5, 0.8], [0.5, 0.5, 0.1], "abc")
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    assert [text.get_position()[1] > y for text, y in zip(ax.texts, (0.5, 0.5, 0.1), strict=True)] == [0, 0, 1]


def test_contours_are_labeled_inside_the_axes():
    ax = Figure().add_subplot(xlim=(0, 1), ylim=(0, 1))
    x = np.linspace(0, 1, 101)
    plots.contours(ax, "z", x, x, np.broadcast_to(x, (101, 101)), (0.01, 0.5, 0.99))
    assert [text.get_text() for text in ax.texts] == ["0.5"]


def test_what_is_shown_already_is_left_alone():
    """The panel draws again what is stale."""
    ax = Figure().add_subplot(xlim=(0, 1), ylim=(0, 1))

    def draw(x, y, word, color):
        area = plots.area(ax, "area", [0, x], [0, 1])
        return plots.line(ax, "line", [0, x], [0, 1]), area, plots.text(ax, "text", 0.5, y, word, color=color)

    for artist in draw(1, 0.5, "word", "red"):
        artist.stale = False
    for change, expected in (
        ((1, 0.5, "word", "red"), [False, False, False]),
        ((2, 0.5, "word", "red"), [True, True, False]),
        ((2, 0.6, "word", "red"), [False, False, True]),
        ((2, 0.6, "other", "red"), [False, False, True]),
        ((2, 0.6, "other", "blue"), [False, False, True]),
    ):
        artists = draw(*change)
        assert [artist.stale for artist in artists] == expected, change
        for artist in artists:
            artist.stale = False


def test_close_arrows_share_the_word_of_the_first():
    ax = Figure().add_subplot(xlim=(0, 4), ylim=(0, 1))

    def told(x, shown):
        plots.arrows(ax, "k", x, 0.5, ["1", "2", "3", "4"], ["k", "r", "g", "b"], shown, apart=0.5)
        return [artist.get_text() for artist in ax.texts]

    assert told([3.0, 2.0, 1.8, 1.4], [True] * 4) == ["1\n▼", "2…\n▼", "▼", "▼"]
    assert told([3.0, 2.0, 1.8, 1.8], [True, True, False, False]) == ["1\n▼", "2\n▼", "", ""]
    assert told([2.0] * 4, [True] * 4) == ["1…\n▼", "▼", "▼", "▼"]
    assert [artist.get_position() for artist in ax.texts] == [(2.0, 0.5)] * 4  # moved, not made anew


def test_corner_words_without_a_key_are_background():
    """With a key they are one artist that moves, without one they are drawn once and for all."""
    ax = Figure().add_subplot()
    told = plots.corner(ax, None, 1, "size", x=0.8)
    number, again = plots.corner(ax, "size", 1, "48 %"), plots.corner(ax, "size", 1, "9 %")
    assert told.get_gid() is None and number is again and again.get_text() == "9 %"
    assert told.get_position()[1] == number.get_position()[1] and plots.corner(ax, None, 2, "").get_position()[1] < 0.9


def test_asinh_axis_keeps_zero_and_signs():
    ax = Figure().add_subplot()
    plots.asinh_axis(ax.yaxis, (-1, -0.1, 0, 0.1, 1), linear=0.1)
    assert (
        ax.get_ylim() == (-1, 1) and [tick.get_text() for tick in ax.get_yticklabels()] == "−1 −0.1 0 +0.1 +1".split()
    )
    low, middle, high = ax.transScale.transform([[1, 0.1], [1, 0], [1, -0.1]])[:, 1]
    assert middle == 0 and low == -high == pytest.approx(0.1 * np.arcsinh(1))


def test_a_mosaic_has_its_first_tile_in_the_upper_left(ax):
    tiles = torch.zeros(2, 3, 4, 5)  # white
    tiles[0, 0], tiles[1, 2] = 1.0, 0.5
    picture = plots.mosaic(ax, "digits", tiles, 0, 1)
    shown = picture.get_array()[::-1, :, 0]  # from the top
    assert shown.shape == (2 * 5, 3 * 6) and picture.get_extent() == [0, 3, 0, 2]
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 3), (0, 2))
    assert (shown[:4, :5] == 0).all() and (shown[5:9, 12:17] == 128).all()
    assert (shown[4] == 255).all() and (shown[:, 5] == 255).all() and (shown[:4, 6:] == 255).all()
    assert plots.mosaic(ax, "digits", 1 - tiles, 0, 1) is picture and picture.get_array()[-1, 0, 0] == 255


def test_mosaics_have_axes_of_their_own_and_move():
    figure = Figure()
    FigureCanvasAgg(figure)
    tiles = {"few": torch.zeros(1, 2, 4, 4), "many": torch.zeros(2, 5, 4, 4)}
    plots.mosaics(figure, tiles, 0, 1)
    assert [ax.get_title() for ax in figure.axes] == ["few", "many"]
    plots.mosaics(figure, {name: part + 1 for name, part in tiles.items()}, 0, 1)
    assert len(figure.axes) == 2 and [len(ax.images) for ax in figure.axes] == [1, 1]
    assert figure.axes[1].images[0].get_array().min() == 0  # black now


def test_corner_words_stand_below_each_other(ax):
    plots.corners(ax, ("one", "red"), ("two", "blue"))
    heights = [word.get_position()[1] for word in ax.texts]
    assert [word.get_text() for word in ax.texts] == ["one", "two"] and heights[0] > heights[1]


def drawn(ax, key):
    """x and y of the artist with this key."""
    return np.array(plots._find(ax, key).get_data(), dtype=float)


def test_a_difference_is_seen_beyond_two_standard_errors():
    values = np.array([1.0, 2, 3, 4])  # mean 2.5, standard error 0.6455
    for shift, expected in ((0, True), (-1.3, False), (-3.7, False), (-3.8, True)):
        assert plots.seen(values + shift) == expected, shift
        assert ("n.s." in plots.difference_words(values + shift)) == (not expected)
    assert plots.difference_words(values - 3.8, digits=2) == "−1.30 ± 0.65"
    assert plots.difference_words([1.0, 2, 3, 4, np.nan], unit=10) == "+25.0 ± 6.5"
    assert not plots.seen([0.5]) and "n.s." in plots.difference_words([0.5])  # one seed shows nothing


def test_paired_rows_are_drawn_from_the_top_with_bars_of_two_standard_errors(ax):
    plots.paired_axes(ax, ["a", "b", "c", "d"], -10, 10)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["d", "c", "b", "a"]
    values = np.array([[1.0, 2, 3, 4], [np.nan, np.nan, -1, 30]]) / 100
    plots.paired(ax, "key", values, ["red", "blue"], 100, first=1, every=2)
    assert drawn(ax, "key 0 mean").ravel().tolist() == [2.5, 2]
    assert drawn(ax, "key 1 mean").ravel().tolist() == [14.5, 0]
    bar = plots._find(ax, "key 0 bar").get_segments()[0][:, 0]
    assert np.allclose(bar, 2.5 + 2 * 0.6455 * np.array([-1, 1]), atol=1e-3)
    assert np.allclose(drawn(ax, "key 0 seeds")[0], [1, 2, 3, 4]) and drawn(ax, "key 1 seeds")[0].tolist() == [-1]
    assert plots._find(ax, "key 0 words").get_text() == "+2.5 ± 0.6"
    plots.paired(ax, "key", [[], []], ["red", "blue"], 100, first=1, every=2)  # nothing yet
    assert plots._find(ax, "key 0 words").get_text() == "" and drawn(ax, "key 0 seeds").size == 0


def test_an_effect_subtracts_the_next_stop_of_both_and_keeps_the_plain_shadow():
    figure = Figure()
    FigureCanvasAgg(figure)
    plots.effect_axes(figure, [0.2, 1, 5], "κ", ["one", "two"], -20, 20, "control")
    rng = np.random.default_rng(0)
    found, plain, control = (0.6 + 0.1 * rng.random((3, 6)) for _ in range(3))
    plots.effect(figure, {"found": found, "plain": plain, "control": control, "here": 2})
    left, right = figure.axes
    assert [label.get_text() for label in right.get_yticklabels()] == ["control,\ntwo", "control,\none", "two", "one"]
    gains = 100 * np.array([part[i] - part[i + 1] for part in (found, control) for i in (0, 1)])
    assert np.allclose([drawn(right, f"gain {row} mean")[0, 0] for row in range(4)], gains.mean(1))
    assert np.allclose(drawn(right, "plain"), [100 * (plain.mean(1)[:2] - plain.mean(1)[1:]), [3, 2]])
    assert np.allclose(drawn(left, "now").ravel(), [2, found[2].mean()])
    assert np.allclose(drawn(left, "control")[1], control.mean(1))
    assert np.allclose(drawn(left, "plain")[1], plain.mean(1))
    before = len(right.get_children())
    assert [plots._find(left, key).get_text() for key in ("way", "shadow")] == [
        "pretrained, centered",
        "- - pretrained, plain",
    ]
    plots.effect(figure, {"found": plain, "plain": plain, "control": control, "here": 0})
    assert len(right.get_children()) == before
    assert np.isnan(drawn(left, "plain")[1]).all() and np.isnan(drawn(right, "plain")[0]).all()  # no second line on it
    assert [plots._find(left, key).get_text() for key in ("way", "shadow")] == ["pretrained, plain", ""]


def test_dimensions_mark_the_setting_in_the_cloud():
    figure = Figure()
    FigureCanvasAgg(figure)
    ratios, points = np.array([[0.6, 0.7], [0.75, 0.8], [0.9, 0.95]]), np.arange(6.0).reshape(3, 2) - 2
    cloud = [(ratios, points), (ratios + 0.1, points - 1)]
    plots.dimensions_axes(figure, [0.2, 1, 5], "κ", "κ", ["a", "b", "c"], cloud)
    parts = {name: np.full((3, 4), 5.0 + i) + np.arange(4) for i, name in enumerate(plots.DIMENSIONS)}
    plots.dimensions(figure, parts | {"spot": (0.8, -1.0)})
    left, right = figure.axes
    assert drawn(left, "ensd dots")[1].tolist() == [8.5] * 3 and drawn(right, "now").ravel().tolist() == [0.8, -1.0]
    spots = [line for line in right.lines if line.get_marker() in "osD" and len(line.get_xdata()) == 2]
    spots = [line for line in spots if line.get_linestyle() == "None"]
    assert np.allclose([line.get_xdata() for line in spots], [*ratios, *(ratios + 0.1)])
    assert np.allclose([line.get_ydata() for line in spots], [*points, *(points - 1)])
    assert [line.get_marker() for line in spots] == [*"osD", *"osD"]


def test_cells_are_a_table_on_a_map():
    ax = Figure().add_subplot(xlim=(-0.5, 2.5), ylim=(-0.5, 1.5))
    values = np.arange(6.0).reshape(2, 3) - 1
    for _ in range(2):
        plots.cells(ax, "table", values, values, "{:.1f}")
        assert [(text.get_position(), text.get_text()) for text in ax.texts[::5]] == [((0, 0), "−1.0"), ((2, 1), "4.0")]
    (map_,) = ax.collections
    assert map_.get_datalim(ax.transData).extents.tolist() == [-0.5, -0.5, 2.5, 1.5] and len(ax.texts) == 6
    brightness = map_.to_rgba(map_.get_array()).sum(-1)
    assert brightness[0, 0] == brightness[0, 1] < brightness[0, 2] == brightness[1, 2]  # −1 and 0; 1 and 4
    plots.cells(ax, "table", values, 1 - values)
    np.testing.assert_array_equal(map_.get_array(), (1 - values).clip(0, 1))


# ---- cascades


def rising(count=3):
    x = np.logspace(0, 3, 301)
    return x, np.clip(1 - np.array([1.0, 10.0, 100.0])[:count, None] / x, 0, None)


def test_named_lines_carry_their_word_where_they_reach_its_height(ax):
    ax.set(xscale="log", xlim=(1, 1000), ylim=(0, 1))
    words, heights, colors = ("a", "b", "c", "d"), (0.5, 0.5, 0.95, 0.5), ("r", "g", "b", "k")
    plots.named_lines(ax, "step", *rising(), words, heights, colors)
    there = {artist.get_text(): artist.get_position() for artist in ax.texts}
    assert set(there) == {"a", "b", ""}  # c never reaches .95, and there is no fourth curve
    assert there["a"] == (pytest.approx(2, rel=0.03), 0.5) and there["b"] == (pytest.approx(20, rel=0.03), 0.5)
    plots.named_lines(ax, "step", *rising(1), words, heights, colors)  # fewer curves: words go, no artist is made
    assert sorted(artist.get_text() for artist in ax.texts) == ["", "", "", "a"]


def test_words_in_a_band_are_where_it_is_widest_and_turned_with_it(ax):
    x = np.logspace(0, 4, 201)
    ax.set(xscale="log", yscale="log", xlim=(1, 1e4), ylim=(1e-4, 1))
    upper = x**-0.5
    lower = upper / (1 + 9 * np.exp(-(np.log(x / 100) ** 2)))
    artist = plots.in_band(ax, "word", x, upper, lower, "here")
    assert artist.get_position() == (pytest.approx(100, rel=0.05), pytest.approx(0.1 / 10**0.5, rel=0.05))
    (x0, y0), (x1, y1) = ax.transData.transform([(10, 10**-0.5), (1000, 1000**-0.5)])
    assert artist.get_rotation() % 360 == pytest.approx(np.degrees(np.arctan2(y1 - y0, x1 - x0)) % 360, abs=0.5)
    assert plots.in_band(ax, "word", x, upper, upper / 1.2, "here") is artist and artist.get_text() == ""


def test_stacked_fills_below_the_curve_and_names_what_there_is_room_for(ax):
    x = np.logspace(0, 4, 201)
    ax.set(xscale="log", yscale="log", xlim=(1, 1e4), ylim=(1e-4, 1))
    curve = plots.stacked(ax, "mse", x, x**-0.5, 0.1 * x**-0.5, ("rest", "lower"))
    assert np.array_equal(curve.get_ydata(), x**-0.5) and len(ax.patches) == 2
    assert [artist.get_text() for artist in ax.texts] == ["rest", "lower"]
    plots.stacked(ax, "mse", x, x**-0.5, 0 * x, ("rest", "lower"))
    assert [artist.get_text() for artist in ax.texts] == ["rest", ""] and len(ax.patches) == 2


def test_a_key_names_one_artist():
    """Two kinds of artist under one key: the author hears it at once, and not as an error of matplotlib."""
    ax = Figure().add_subplot()
    plots.line(ax, "slope", [0, 1], [0, 1])
    for other in (
        lambda: plots.text(ax, "slope", 0, 0, "word"),
        lambda: plots.corner(ax, "slope", 1, "word"),
        lambda: plots.area(ax, "slope", [0, 1], [0, 1]),
        lambda: plots.lines(ax, "slope", [0, 1], [[0, 1]]),
        lambda: plots.image(ax, "slope", np.zeros((2, 2, 3)), (0, 1, 0, 1)),
    ):
        with pytest.raises(ValueError, match="the key 'slope' is that of a Line2D in these axes"):
            other()


# ---- covariances and powers


def test_signed_colors_are_white_at_zero_and_pure_at_the_ends():
    blue, red = (mpl.colors.to_rgb(color) for color in (plots.BLUE, plots.RED))
    np.testing.assert_allclose(plots.signed_rgb([-1, 0, 1, 3]), [blue, (1, 1, 1), red, red], atol=1e-12)
    np.testing.assert_allclose(plots.signed_rgb(torch.tensor(0.5)), (1 + np.array(red)) / 2, atol=1e-7)


def test_points_take_a_new_color_and_keep_the_old_one_unasked():
    ax = Figure().add_subplot()
    for color in (plots.GREEN, plots.PINK):
        (artist,) = {plots.dots(ax, "d", [0], [1], color=color), plots.dots(ax, "d", [0], [1])}
        assert artist.get_color() == artist.get_markerfacecolor() == color
    plots.named_seeds(ax, ["w"], np.array([[1.0, 2.0]]), [plots.GREEN])
    plots.named_seeds(ax, ["w"], np.array([[1.0, 2.0]]), [plots.PINK])
    colors = {artist.get_gid(): artist.get_color() for artist in (*ax.lines, *ax.texts)}
    told = {colors[key] for key in ("w dots", "w bars", "w number")}
    assert told == {plots.PINK} and colors["each seed"] != plots.PINK


def test_a_covariance_shows_its_correlations_from_the_upper_left_and_its_first_eigenvalues():
    figure = Figure()
    plots.covariance_axes(figure, shown=2)
    corr = np.array([[1.0, -1, 0], [-1, 1, 0], [0, 0, 1]])
    for _ in range(2):  # made once, moved ever after
        plots.covariance(figure, corr, np.array([0.5, 0.3, 0.2]), 1 / 3, 0.4, 2.0, shown=2)
        left, right = figure.axes
        (picture,) = (artist for artist in left.get_children() if artist.get_gid() == "correlations")
        np.testing.assert_array_equal(picture.get_array()[::-1], (plots.signed_rgb(corr) * 255).round())
        (dots,) = (artist for artist in right.lines if artist.get_gid() == "spectrum")
        np.testing.assert_array_equal(dots.get_xydata(), [[1, 0.5], [2, 0.3]])
        words = {text.get_text() for text in right.texts}
        assert {"0.33", "40%", "2.0"} <= words


def test_powers_have_bars_and_say_the_exponent():
    figure = Figure()
    words = [("power of x", plots.BLUE)]
    parts = ("left", "y", "x", (1, 10), (1, 100), words, None), ("right", "y", "x", (1, 10), (1, 10), words, -1)
    plots.power_axes(*parts)(figure)
    left, right = figure.axes
    plots.power(left, "a", (1, 10), np.array([5.0, 50.0]), np.array([1.0, 2.0]), "1.00 ± 0.01", plots.BLUE)
    assert left.get_ylim() == (1, 100) and left.get_yscale() == left.get_xscale() == "log"
    (bars,) = (artist for artist in left.lines if artist.get_gid() == "a bars")
    np.testing.assert_array_equal(bars.get_ydata()[[0, 1, 3, 4]], [4, 6, 48, 52])
    assert {"power of x", "1.00 ± 0.01"} <= {text.get_text() for text in left.texts}
    slopes = [np.diff(np.log(guide.get_ydata())) / np.diff(np.log(guide.get_xdata())) for guide in right.lines]
    np.testing.assert_allclose(slopes, -1)


def test_seed_curves_are_all_there_and_their_median_is_strong(ax):
    curves = np.array([[0.0, 1.0], [0.0, 0.2], [0.0, 0.4]])
    median = plots.seed_curves(ax, "accuracy", [0, 10], curves, color=plots.BLUE)
    assert np.array_equal(median.get_ydata(), [0, 0.4]) and median.get_color() == plots.BLUE
    (each,) = (artist for artist in ax.collections if artist.get_gid() == "accuracy each")
    assert np.array_equal([segment[:, 1] for segment in each.get_segments()], curves)
    assert (each.get_colors()[0, :3] > mpl.colors.to_rgb(plots.BLUE)).all()


def test_seed_stems_stand_on_the_mean_of_their_seeds(ax):
    plots.seed_stems(ax, "power", [1, 3], [[0.0, 1.0], [0.5, 0.5]])
    at = {line.get_gid(): line.get_xydata().tolist() for line in ax.lines}
    assert at["power"] == [[1, 0.25], [3, 0.75]]
    assert at["power each"] == [[1, 0], [3, 1], [1, 0.5], [3, 0.5]]


def test_a_second_phase_counts_its_steps_from_zero(ax):
    plots.phases(ax, "accuracy", 1000, 500)
    assert ax.get_xlim() == (0, 1500) and ax.get_xticks().tolist() == [0, 500, 1000, 1250, 1500]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "500", "1000 | 0", "250", "500"]
    assert [line.get_xdata() for line in ax.lines] == [[1000, 1000]]


def test_bands_stand_at_their_positions_and_may_be_none(ax):
    artist = plots.bands(ax, "shared", [3, 6], top=0.5)
    assert np.array_equal(artist.get_xydata(), [[3, 0], [3, 0.5], [3, np.nan], [6, 0], [6, 0.5], [6, np.nan]], True)
    assert len(plots.bands(ax, "shared", []).get_xydata()) == 0 and artist.get_zorder() == 0
