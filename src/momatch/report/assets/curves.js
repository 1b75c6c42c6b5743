// Training curves and the thresholds of each class.

const hiddenRuns = new Set();

function drawCurves(chart, number) {
  const { lines, share } = data.curves[number];
  const several = data.runs.length > 1;
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const drawn = lines.map((line, i) => ({ ...line, tint: runColor(several ? line.run : i), i }));
  const traces = drawn.filter((line) => !hiddenRuns.has(line.run)).map((line) => ({
    type: "scatter", mode: line.x.length > 1 ? "lines" : "markers", x: line.x, y: line.y, name: several ? letter(line.run) : line.name,
    // After eight runs the colours repeat with another dash.
    line: { color: line.tint, width: 2, dash: several ? dashes[Math.floor(line.run / 8) % 4] : "solid" },
    marker: { color: line.tint, size: 7 },
    hovertemplate: share ? "%{y:.1%}" : "%{y:.3~g}",
  }));
  const y = share ? { tickformat: ".0%", range: shareRange(drawn) } : { rangemode: "tozero" };
  const lastStep = Math.max(...drawn.map((line) => line.x.at(-1)));
  draw(chart, traces, {
    hovermode: "x unified",
    xaxis: axis("step", { tickformat: ",d", nticks: 5, range: [0, 1.01 * lastStep], hoverformat: ",d", unifiedhovertitle: { text: "step %{x}" } }),
    yaxis: axis("", { nticks: 6, ...y }),
  });
  const last = (line) => (share ? percent(line.y.at(-1)) : decimal(line.y.at(-1)));
  const entries = drawn.filter((line) => !hiddenRuns.has(line.run));
  keys(chart).replaceChildren(...entries.map((line) => several
    ? key(`${letter(line.run)} ${last(line)}`, "line", line.tint, null, line.name)
    : key(`${line.name} ${last(line)}`, "line", line.tint)));
}

// The range of shares, within 0 to 100 %.
function shareRange(lines) {
  const values = lines.flatMap((line) => line.y).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = Math.max(0.02, 0.08 * (high - low));
  return [Math.max(-0.01, low - room), Math.min(1.01, high + room)];
}

function drawThresholds(chart, number) {
  const { classes, thresholds } = data.runs[number];
  const name = (k) => classes[k] ?? `class ${k}`;
  const K = thresholds.y.length;
  const x = axis("step", { tickformat: ",d", nticks: 6, range: [0, 1.02 * Math.max(1, thresholds.x.at(-1))] });
  if (thresholds.heatmap) {
    const names = thresholds.y.map((_, k) => short(name(k)));
    const bar = colorBar({ tickformat: ".0%" });
    const trace = {
      type: "heatmap", x: thresholds.x, y: thresholds.y.map((_, k) => k), z: thresholds.y, zmin: 0, zmax: 1,
      colorscale: scaleTo("run-0"), colorbar: bar, customdata: thresholds.y.map((row, k) => row.map(() => names[k])),
      hovertemplate: "%{customdata}<br>step %{x:,d}: %{z:.1%}<extra></extra>",
    };
    draw(chart, [trace], { xaxis: x, yaxis: classAxis("", names, { autorange: "reversed", showgrid: false }) });
    return;
  }
  const traces = thresholds.y.map((y, k) => ({
    type: "scatter", mode: thresholds.x.length > 1 ? "lines" : "markers", x: thresholds.x, y, name: short(name(k)),
    line: { color: classColor(k, K), width: 1.6 }, marker: { color: classColor(k, K) },
    hovertemplate: "%{y:.1%}",
  }));
  draw(chart, traces, { hovermode: "closest", xaxis: x, yaxis: axis("", { tickformat: ".0%", rangemode: "tozero" }) });
  keys(chart).replaceChildren(
    ...thresholds.y.map((y, k) => key(`${name(k)} ${percent(y.at(-1))}`, "line", classColor(k, K))),
  );
}

// An axis of classes, with as many names as fit.
function classAxis(title, names, more = {}, most = 50) {
  const step = Math.max(1, Math.ceil(names.length / most));
  const places = names.map((_, k) => k).filter((k) => k % step === 0);
  return axis(title, { tickmode: "array", tickvals: places, ticktext: places.map((k) => names[k]), ...more });
}
