from __future__ import annotations

import json
import math
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from matplotlib.axes import Axes
from report_runs import NORMS, a_copy, a_run, evaluated

from gswgan.privacy.events import Composed, DrawnOne, Gaussian, Repeated, Sampled
from gswgan.report import words
from gswgan.report.charts import epsilon_chart, signal_rows
from gswgan.report.compare import curve, together
from gswgan.report.figures import BLUE, INK, draw
from gswgan.report.page import strip_uri
from gswgan.report.private import Private, read_private
from gswgan.report.private_charts import norm_chart, title, tradeoff_chart, training_chart
from gswgan.report.release import Release, max_detection_rate, read_release


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0, 4.0])
def test_the_best_attack_on_a_gaussian_release_is_known(mu: float) -> None:
    exact = norm.cdf(norm.ppf(0.01) + mu)
    found = max_detection_rate(Gaussian(noise_std=2 / mu, sensitivity=2.0), "replace-one")
    assert exact - 1e-6 <= found <= exact * 1.01 + 1e-4
    parts = Repeated(event=Gaussian(noise_std=4 / mu, sensitivity=2.0), times=4)
    assert max_detection_rate(Composed(events=(parts,)), "replace-one") == pytest.approx(found, rel=1e-3)


def test_sampling_helps_against_the_best_attack_and_the_papers_draw_has_no_curve() -> None:
    gaussian = Gaussian(noise_std=1.0, sensitivity=2.0)
    rare = max_detection_rate(Sampled(rate=0.1, event=gaussian), "replace-one")
    assert 0.01 < rare < 0.1 * max_detection_rate(gaussian, "replace-one") + 0.02
    assert max_detection_rate(Repeated(event=DrawnOne(count=10, event=gaussian), times=5), "replace-one") is None


def test_figures_in_words() -> None:
    shown = {10.0: "10", 0.00001: "0.00001", 610.31: "610.3", 9.9934: "9.993", 12345.6: "12,346", 0: "0", 1e-9: "10⁻⁹",
             3.2e12: "3.2 × 10¹²", 0.99978: "0.9998", 1000.0: "1,000"}  # fmt: skip
    for value, text in shown.items():
        assert words.figure(value) == text
    assert words.plural(1, "class") == "1 class"
    assert words.plural(1437, "class") == "1,437 classes"
    assert words.share(1e-5) == "1 in 100,000"
    assert title("gaussian_nb") == "Gaussian NB"
    assert title("label_accuracy") == "Label accuracy"


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 9.9999, 10.0, 13.0, 20.0, 139.2, 610.3])
def test_the_factor_is_never_understated(epsilon: float) -> None:
    text = words.factor(epsilon).replace(",", "")
    power = text.removeprefix("10").translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789"))
    logarithm = math.log(float(text)) if text.isascii() else float(power) * math.log(10)
    assert epsilon - 1e-6 <= logarithm <= epsilon + (0.01 if text.isascii() else math.log(10))


def test_signal_and_noise_by_class() -> None:
    release = read_release(a_run("kernel"))
    assert release.embedding is not None
    rows = signal_rows(release)
    sums = release.embedding.sums.numpy()
    for row, own in zip(rows, sums, strict=True):
        assert row["released"] == pytest.approx(np.sqrt((own**2).sum()))
        assert row["noise"] == pytest.approx(release.embedding.noise_std * np.sqrt(own.size))
        assert row["signal"] ** 2 + row["noise"] ** 2 == pytest.approx(row["released"] ** 2)
        assert row["kept"]


def test_drawings_follow_the_page_and_repeat() -> None:
    def paint(panels: list[Axes], narrow: bool) -> None:
        panels[0].plot([1, 2], [1, 2], color=BLUE)
        panels[0].set_title("$x_1$ <b>")

    first, second = (draw("some", 'a "<>', paint, height=2) for _ in range(2))
    assert (first.svg, first.png, first.wide, first.narrow) == (second.svg, second.png, second.wide, second.narrow)
    for text in (first.wide, first.narrow):
        assert BLUE not in text
        assert INK not in text
        assert "var(--blue)" in text
        assert "currentColor" in text
        assert "$x_1$ &lt;b&gt;" in text
        assert text.startswith("<svg viewBox=")
        assert 'aria-label="a &quot;&lt;>"' in text
        assert "font-family" not in text
    assert first.png.startswith(b"\x89PNG")
    assert BLUE.encode() in first.svg
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (first.wide, first.narrow)]
    assert not ids[0] & ids[1]


def test_epsilon_ends_where_the_guarantee_is() -> None:
    release = read_release(a_run("ensemble"))
    assert words.figure(release.cost.epsilon) in epsilon_chart(release).alt
    assert f"guarantee: {words.figure(release.cost.epsilon)}" in epsilon_chart(release).wide


def private(rows: list[dict[str, object]]) -> Private:
    return Private(evaluation=None, stale=False, metrics=rows)


def test_norms_are_shown_only_where_they_were_logged() -> None:
    assert norm_chart(private([{"step": 50, "critic_loss": 1.0}]), 1.0) is None
    assert norm_chart(private([{"step": 50, "norm_before": NORMS["norm_before"]}]), 1.0) is None
    assert norm_chart(private([{"step": 50, "norm_before": [0.0] * 7, "norm_after": [0.0] * 7}]), 1.0) is None
    assert norm_chart(private([{"step": 50, "norm_before": [math.nan] * 7, "norm_after": [1.0] * 7}]), 1.0) is None
    figure = norm_chart(private([{"step": step, **NORMS} for step in (50, 100)]), 1.0)
    assert figure is not None
    assert "1.2 before clipping" in figure.alt
    assert norm_chart(private([{"step": 50, **NORMS}]), 1.0) is not None  # a single row too


def test_a_training_log_with_torn_repeated_and_infinite_rows(tmp_path: Path) -> None:
    run = a_copy("kernel", tmp_path / "run")
    rows = [{"step": 50, "distance": 1.0}, {"step": 100, "distance": 2.0}, {"step": 150, "distance": math.inf}]
    lines = [json.dumps(row) for row in [*rows, {"step": 100, "distance": 3.0}]]
    (run / "private" / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 200, "dis')
    found = read_private(run)
    assert found.series() == {"distance": ([50, 100], [1.0, 3.0])}
    figure = training_chart(found)
    assert figure is not None
    assert "from 1 to 3" in figure.alt
    assert training_chart(private([])) is None


def three() -> list[tuple[str, Release]]:
    return [(kind, read_release(a_run(kind))) for kind in ("kernel", "private", "paper")]


def test_costs_of_several_runs_add_up() -> None:
    runs = three()
    found = together(runs)
    assert found is not None
    assert found["epsilon"] == pytest.approx(sum(release.cost.epsilon for _, release in runs))
    assert found["delta"] == pytest.approx(3e-5)
    assert together([runs[0], runs[0]])["epsilon"] == runs[0][1].cost.epsilon  # one ledger
    assert together([*runs, ("void", read_release(a_run("void")))]) is None
    assert together([*runs, ("persons", read_release(a_run("persons")))]) is None


def test_the_privacy_utility_curve(tmp_path: Path) -> None:
    runs = [*three(), ("void", read_release(a_run("void")))]
    names = ("cnn", "gaussian_nb"), ("gaussian_nb", "cnn", "mlp"), ("cnn",), ("mlp",)
    found = []
    for at, ((kind, _), classifiers) in enumerate(zip(runs, names, strict=True)):
        path = evaluated(a_copy(kind, tmp_path / kind), accuracy=0.5 + at / 10, classifiers=classifiers)
        found.append(read_private(path).evaluation or {})
    common, points = curve(runs, found)
    assert common == ["cnn"]  # what all with a guarantee have
    assert [point.run for point in points] == ["kernel", "private", "paper"]
    assert [point.accuracy for point in points] == pytest.approx([0.503, 0.613, 0.703])
    assert points[0].real == 0.95
    assert points[0].epsilon == runs[0][1].cost.epsilon
    assert [point.claimed is None for point in points] == [True, True, False]
    figure = tradeoff_chart(points, "Accuracy (CNN)")
    assert "private, epsilon 1, 0.613" in figure.alt
    assert "claimed" in figure.wide
    assert curve(runs, [{}] * 4) == ([], [])


def test_strips() -> None:
    grey = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    assert strip_uri(grey).startswith("data:image/png;base64,")
    assert strip_uri(np.repeat(grey[..., None], 3, axis=-1)) != strip_uri(grey)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_is_enough_in_light_and_dark() -> None:
    style = (resources.files("gswgan.report") / "page.css").read_text("utf-8")
    themes = re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", theme))
        for text in ("ink", "muted", "blue", "orange", "green", "red"):
            for ground in ("paper", "card", "soft", "alarm", "caution"):
                bright, dim = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
                assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, ground, colours)
