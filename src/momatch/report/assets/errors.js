// The confusion matrix and the calibration.

function drawConfusion(chart, number) {
  const { classes, errors } = data.runs[number];
  const { confusion } = errors;
  const K = classes.length;
  const totals = confusion.map((row) => row.reduce((a, b) => a + b, 0));
  // The square root keeps rare errors visible next to frequent ones; the offset sets the rarest off from the background.
  const shade = (n, total) => (n ? 0.15 + 0.85 * Math.sqrt(n / total) : null);
  const part = (right, tint) => ({
    type: "heatmap", zmin: 0, zmax: 1, colorscale: scaleTo(tint), showscale: false, xgap: K > 40 ? 0 : 2, ygap: K > 40 ? 0 : 2,
    z: confusion.map((row, y) => row.map((n, p) => ((y === p) === right ? shade(n, totals[y]) : null))),
    hoverongaps: false, hoverinfo: "text",
    hovertext: confusion.map((row, y) => row.map((n, p) => cellText(classes, y, p, n, totals[y]))),
    ...(K <= 20 ? { text: confusion.map((row, y) => row.map((n, p) => ((y === p) === right && n ? n : ""))), texttemplate: "%{text}", textfont: { size: 11 } } : {}),
  });
  const names = classes.map((name) => short(name, 14));
  draw(chart, [part(true, "run-0"), part(false, "run-1")], {
    margin: { l: 44, r: 4, t: 8, b: 44 },
    xaxis: classAxis("predicted", names, { showgrid: false, tickangle: longest(names) > 3 ? -45 : 0, range: [-0.5, K - 0.5] }, 25),
    yaxis: classAxis("true", names, { showgrid: false, range: [K - 0.5, -0.5] }),
    shapes: [{ type: "rect", xref: "paper", yref: "paper", x0: 0, x1: 1, y0: 0, y1: 1, line: { color: color("line"), width: 1 } }],
  });
}

function longest(names) {
  return Math.max(...names.map((name) => name.length));
}

function cellText(classes, y, p, n, total) {
  const what = y === p ? "classified correctly" : `predicted as ${short(classes[p], 30)}`;
  return `${short(classes[y], 30)} ${what}<br>${n} of ${total} (${percent(n / total)})`;
}

function drawCalibration(chart, number) {
  const { count, accuracy, confidence } = data.runs[number].errors;
  const B = count.length;
  const n = count.reduce((a, b) => a + b, 0);
  const used = count.flatMap((c, b) => (c ? [b] : []));
  const middle = used.map((b) => (b + 0.5) / B);
  const bars = {
    type: "bar", x: middle, width: 0.9 / B, y: used.map((b) => accuracy[b]),
    // Bars of a few images are unreliable, and drawn faint.
    marker: { color: color("run-0"), opacity: used.map((b) => 0.25 + 0.65 * Math.min(1, count[b] / 20)) },
    customdata: used.map((b) => [b / B, (b + 1) / B, count[b], confidence[b]]),
    hovertemplate: "confidence %{customdata[0]:.0%} to %{customdata[1]:.0%}<br>%{customdata[2]:,} images, %{y:.1%} correct<br>" +
      "mean confidence: %{customdata[3]:.1%}<extra></extra>",
  };
  const means = {
    type: "scatter", mode: "markers", x: used.map((b) => confidence[b]), y: used.map((b) => confidence[b]), hoverinfo: "skip",
    marker: { symbol: "line-ew-open", size: 14, color: color("ink"), line: { width: 2 } },
  };
  const ideal = { type: "scatter", mode: "lines", x: [0, 1], y: [0, 1], hoverinfo: "skip", line: { color: color("soft"), dash: "dash", width: 1.2 } };
  const sizes = {
    type: "bar", x: middle, width: 0.9 / B, y: used.map((b) => count[b] / n), yaxis: "y2", marker: { color: color("faint"), opacity: 0.7 },
    hovertemplate: "%{y:.1%} of the images<extra></extra>",
  };
  draw(chart, [bars, ideal, means, sizes], {
    hovermode: "closest",
    xaxis: axis("confidence", { range: [0, 1], tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1], tickformat: ".0%", anchor: "y2", showgrid: false }),
    yaxis: axis("accuracy", { domain: [0.34, 1], range: [0, 1.02], tickformat: ".0%" }),
    yaxis2: axis("images", { domain: [0, 0.22], range: [0, 1.02], tickformat: ".0%", nticks: 3 }),
  });
  keys(chart).replaceChildren(
    key("accuracy", "circle", color("run-0")), key("mean confidence", "line", color("ink")),
    key("images in the bin", "circle", color("faint")),
  );
}
