"""The sections that show images and clusters: what is said beside each chart, and where a script draws it."""

from collections.abc import Sequence
from html import escape
from statistics import median

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.report.curves import curve_charts, threshold_points
from momatch.report.findings import ClusterFindings, Densities, Findings, Missing, Picture, Points
from momatch.report.panels import chart, panels, table
from momatch.report.sprites import Sprites
from momatch.report.words import count, decimal, missing, percent

#: Classes up to which each has a row high enough for numbers.
MOST_ROWS = 30
#: Longest side of a picture on a contact sheet, in pixels.
SHEET_PIXELS = 64
#: How each outlier score is called.
SCORES = {
    "nearest": "distance to the nearest center",
    "assigned": "distance to the predicted center",
    "farthest": "distance to the farthest center",
    "density": "density, -log p(x)",
    "confidence": "lack of confidence",
}


def curves_section(findings: Sequence[Findings]) -> str:
    """Training curves, those of several runs over each other; then the thresholds of each run."""
    charts = []
    for number, each in enumerate(curve_charts(findings)):
        title = escape(each["title"])
        drawn = chart("curves", f"{title} over the steps of training", number, height=250)
        charts.append(f"<figure><figcaption>{title}</figcaption>{drawn}</figure>")
    if not charts:
        return missing("Nothing was recorded of the training.")
    thresholds = ""
    if any(threshold_points(run) for run in findings):
        thresholds = "<h3 class='sub'>Confidence from which a pseudo-label counts, class by class</h3>" + panels(
            findings, _thresholds
        )
    return f'<div class="charts">{"".join(charts)}</div>{thresholds}'


def _thresholds(run: Findings, number: int) -> str:
    points = threshold_points(run)
    if points is None:
        return missing("No thresholds were recorded: the policy has none, or the run is older than their record.")
    height = 130 + 12 * len(points["y"]) if points["heatmap"] else 300
    return chart("thresholds", "Threshold of each class over the steps of training", number, height=min(height, 1300))


def map_section(run: Findings, number: int) -> str:
    """The latent space in two dimensions."""
    if isinstance(run.points, Missing):
        return missing(run.points.reason)
    drawn = chart("map", "Map of the latent space; each point is an image", number, height=640, narrow=440)
    return f'<div class="split wide">{drawn}<div>{_map_words(run.points)}</div></div>'


def _map_words(points: Points) -> str:
    rows = []
    for o, name in enumerate(points.origin_names):
        flagged = points.flagged[points.origin == o]
        if len(flagged):
            rows.append((escape(name), count(len(flagged)), percent(float(flagged.double().mean()))))
    variance = f"<p>The two directions of PCA hold {percent(points.explained)} of the variance.</p>"
    return table(("Images on the map", "Shown", "Taken for outliers"), rows, kind="numbers") + variance


def gaussianity_section(run: Findings, number: int) -> str:
    """Moments and distances of each class beside those of a Gaussian."""
    if isinstance(run.clusters, Missing):
        return missing(run.clusters.reason)
    K = len(run.clusters)
    short = 110 + (32 * K if K <= MOST_ROWS else 13 * K)
    title = "Error of each moment, class by class, in units of chance"
    heatmap = chart("moments", title, number, height=max(720, short), narrow=short)
    label = "Sample moments of one class beside those of a Gaussian"
    details = chart("cells", label, number, height=300) + chart(
        "quantiles", "Squared distances to the center beside the chi-square distribution", number, height=320
    )
    return f'{_moment_words(run.clusters, run.config)}<div class="split">{heatmap}<div class="beside">{details}</div></div>'


def _moment_words(clusters: Sequence[ClusterFindings], config: TrainConfig | Missing) -> str:
    """Order by order, how far the moments are off; and how wide the clouds are."""
    constrained = 0 if isinstance(config, Missing) or config.constraint != "moments" else config.moment_order or 0
    parts = []
    for order in range(1, 5):
        # The largest of an order: moments whose target is 0 are met by any cloud that has collapsed.
        largest = [
            max(ratios)
            for cluster in clusters
            if (ratios := [row.error / row.noise for row in cluster.moments if row.order == order and row.noise > 0])
        ]
        if largest:
            note = " (constrained)" if order <= constrained else ""
            parts.append(f"order {order}{note}: <b>{median(largest):.1f}</b>")
    squares = [row.mean for cluster in clusters for row in cluster.moments if row.cells == "(2)"]
    width = ""
    if squares:
        low, high = decimal(min(squares)), decimal(max(squares))
        span = low if low == high else f"between {low} and {high}"
        width = f" The mean squared distance from the learned center along one dimension is {span}; the target is 1."
    return f"<p>Largest error of each order in units of chance, median over the classes: {', '.join(parts)}.{width}</p>"


def calibration_section(run: Findings, number: int) -> str:
    """Accuracy by confidence."""
    if not isinstance(run.evaluation, Evaluation):
        return missing(run.evaluation.reason)
    gap = f"<p>The gap is {100 * run.evaluation.ece:.1f} points on average (expected calibration error).</p>"
    return gap + chart("calibration", "Accuracy by confidence, in bins", number, height=400)


def densities_section(run: Findings, number: int) -> str:
    """Histograms of log p(x), and how well each score tells outliers from inliers."""
    if isinstance(run.densities, Missing):
        return missing(run.densities.reason)
    drawn = chart(
        "densities", "Histogram of log p(x): images that belong and images that do not", number, height=360, narrow=300
    )
    return drawn + _separation(run.densities)


def _separation(found: Densities) -> str:
    columns = [(state, origin) for state, origins in found.separation.items() for origin in origins]
    if not columns:
        return (
            "<p>There are no outliers to compare with. <code>momatch report RUN --outliers DATASET</code> takes those of "
            "another dataset.</p>"
        )
    rows = []
    for score, name in SCORES.items():
        cells = [found.separation[state][origin].get(score) for state, origin in columns]
        if any(cells):
            rows.append((name, *("" if cell is None else _auroc(cell["auroc"]) for cell in cells)))
    header = ("AUROC of each score", *(f"{escape(origin)}<small>{state}</small>" for state, origin in columns))
    return table(header, rows, kind="numbers")


def _auroc(value: float) -> str:
    return f'<span class="{"chance" if value < 0.6 else "good" if value >= 0.9 else ""}">{value:.3f}</span>'


def sheet_section(pictures: tuple[Picture, ...] | Missing, sprites: Sprites, nothing: str, *, by_score: bool) -> str:
    """Pictures with what was said of them; `nothing` where there are none."""
    if isinstance(pictures, Missing):
        return missing(pictures.reason)
    if not pictures:
        return f"<p>{escape(nothing)}</p>"
    return f'<div class="sheet">{"".join(_picture(each, sprites, by_score) for each in pictures)}</div>'


def _picture(picture: Picture, sprites: Sprites, by_score: bool) -> str:
    said = f"<b>{escape(picture.predicted)}</b> {percent(picture.confidence)}"
    truth = "" if picture.truth is None else f"<span>really {escape(picture.truth)}</span>"
    score = f"<span>score {decimal(picture.score)}</span>" if by_score else ""
    label = f"taken for {escape(picture.predicted)}" + (f", really {escape(picture.truth)}" if picture.truth else "")
    tile = sprites.html(sprites.add(picture.image, most=SHEET_PIXELS), label)
    return f"<figure>{tile}<figcaption>{said}{truth}{score}</figcaption></figure>"
