// How Gaussian each class is: the moments of all classes; moments and quantiles of distances of the selected class.

const chosenClusters = new Map();

// Initially the class that is least Gaussian.
function chosenCluster(number) {
  if (!chosenClusters.has(number)) {
    const { clusters } = data.runs[number];
    const off = clusters.map(({ moments }) => moments.reduce((sum, row) => sum + Math.log(1 + ratio(row)), 0));
    chosenClusters.set(number, off.indexOf(Math.max(...off)));
  }
  return chosenClusters.get(number);
}

function ratio(row) {
  return row.noise > 0 && row.error !== null ? row.error / row.noise : 0;
}

function chooseCluster(number, k) {
  chosenClusters.set(number, k);
  for (const kind of ["moments", "cells", "quantiles"]) {
    const chart = document.querySelector(`[data-chart="${kind}"][data-number="${number}"]`);
    if (chart) CHARTS[kind](chart, number);
  }
}

// A partition by its typical monomial: (2,1) stands for the moments x²y of all pairs of dimensions.
function monomial(cells) {
  const powers = cells.match(/\d+/g) ?? [];
  return powers.map((power, i) => "xyzw"[i] + (power > 1 ? "¹²³⁴"[power - 1] : "")).join("");
}

function cellTicks(moments) {
  const ticktext = moments.map((row) => monomial(row.cells));
  return { tickmode: "array", tickvals: moments.map((_, i) => i), ticktext, tickangle: 0, tickfont: { size: 10, color: color("soft") } };
}

function drawMoments(chart, number) {
  const { clusters } = data.runs[number];
  const moments = clusters[0].moments;
  const chosen = chosenCluster(number);
  const names = clusters.map((cluster, k) => (k === chosen ? `<b>${short(cluster.name)}</b>` : short(cluster.name)));
  const ratios = clusters.map((cluster) => cluster.moments.map(ratio));
  const text = (row, cluster) =>
    `${short(cluster.name, 30)}, order ${row.order}, ${monomial(row.cells)}<br>${decimal(ratio(row))} times chance<br>` +
    `mean ${decimal(row.mean)}, target ${decimal(row.target)}<br>error ${decimal(row.error)}, chance ${decimal(row.noise)}`;
  const ticks = [1, 3, 10, 30, 100];
  const trace = {
    type: "heatmap", z: ratios.map((row) => row.map((r) => Math.log10(Math.max(1, r)))), zmin: 0, zmax: 2, xgap: 2, ygap: clusters.length > 30 ? 1 : 2,
    colorscale: scaleTo("run-1"), hoverinfo: "text", hovertext: clusters.map((cluster) => cluster.moments.map((row) => text(row, cluster))),
    colorbar: colorBar({ tickvals: ticks.map(Math.log10), ticktext: ticks.map((t) => `${t}×`) }),
  };
  if (clusters.length <= 30) {
    trace.text = ratios.map((row) => row.map((r) => (r >= 10 ? r.toFixed(0) : r.toFixed(1))));
    trace.texttemplate = "%{text}";
    trace.textfont = { size: 10 };
  }
  const orders = moments.flatMap((row, i) => (i && moments[i - 1].order !== row.order ? [i - 0.5] : []));
  draw(chart, [trace], {
    margin: { l: 44, r: 10, t: 30, b: 40 },
    xaxis: axis("moment", { ...cellTicks(moments), showgrid: false }),
    yaxis: classAxis("", names, { autorange: "reversed", showgrid: false }),
    shapes: orders.map((x) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: color("soft"), width: 1 } })),
    annotations: orderTitles(moments),
  });
  if (!chart.dataset.listens) {
    chart.dataset.listens = "yes";
    chart.on("plotly_click", ({ points }) => chooseCluster(number, points[0].y));
  }
}

function orderTitles(moments) {
  return [1, 2, 3, 4].flatMap((order) => {
    const places = moments.flatMap((row, i) => (row.order === order ? [i] : []));
    if (!places.length) return [];
    const x = (places[0] + places.at(-1)) / 2;
    const text = places.length > 1 ? `order ${order}` : `${order}`;
    return [{ x, y: 1, yref: "paper", yanchor: "bottom", text, showarrow: false, font: { size: 11, color: color("soft") } }];
  });
}

function drawCells(chart, number) {
  const { clusters } = data.runs[number];
  const chosen = chosenCluster(number);
  const { moments, n } = clusters[chosen];
  const box = tools(chart);
  const names = clusters.map((cluster) => cluster.name);
  box.replaceChildren(
    picker("Class", names, chosen, (k) => chooseCluster(number, k)), make("span", { textContent: `${n.toLocaleString("en")} test images` }),
  );
  const x = moments.map((_, i) => i);
  const scale = momentScale(moments);
  const targets = {
    type: "scatter", mode: "markers", x, y: moments.map((row) => scale.place(row.target)), hoverinfo: "skip",
    marker: { symbol: "line-ew-open", size: 18, color: color("soft"), line: { width: 2 } },
    error_y: {
      type: "data", symmetric: false, color: color("faint"), thickness: 1, width: 4,
      array: moments.map((row) => scale.place(row.target + 2 * row.noise) - scale.place(row.target)),
      arrayminus: moments.map((row) => scale.place(row.target) - scale.place(row.target - 2 * row.noise)),
    },
  };
  const means = {
    type: "scatter", mode: "markers", x, y: moments.map((row) => (row.mean === null ? null : scale.place(row.mean))), marker: { color: color("run-1"), size: 9 },
    customdata: moments.map((row) => [monomial(row.cells), decimal(row.mean), decimal(row.target)]),
    hovertemplate: "%{customdata[0]}: mean %{customdata[1]}, target %{customdata[2]}<extra></extra>",
  };
  draw(chart, [targets, means], {
    hovermode: "closest",
    xaxis: axis("moment", { ...cellTicks(moments), range: [-0.6, moments.length - 0.4], showgrid: false }),
    yaxis: axis("value", scale.ticks),
  });
  keys(chart).replaceChildren(
    key("mean of the test images", "circle", color("run-1")), key("Gaussian, ± 2 standard errors of one cell", "line", color("soft")),
  );
}

// Fourth moments far from their target would hide the lower ones: large values are compressed.
function momentScale(moments) {
  const most = Math.max(...moments.map((row) => Math.abs(row.mean ?? 0) + 2 * row.noise));
  if (most <= 15) return { place: (value) => value, ticks: { nticks: 6 } };
  const marks = [1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 100000, 1e6, 1e9, 1e12].filter((mark) => mark <= 1.5 * most);
  const shown = [...marks.map((mark) => -mark).reverse(), 0, ...marks];
  return { place: Math.asinh, ticks: { tickmode: "array", tickvals: shown.map(Math.asinh), ticktext: shown.map(decimal) } };
}

function drawQuantiles(chart, number) {
  const { clusters } = data.runs[number];
  const chosen = chosenCluster(number);
  const { expected, observed, name } = clusters[chosen];
  const others = { x: [], y: [] };
  for (const [k, cluster] of clusters.entries()) {
    if (k === chosen) continue;
    others.x.push(...cluster.expected, null);
    others.y.push(...cluster.observed, null);
  }
  const most = Math.max(...expected);
  const traces = [
    { type: "scatter", mode: "lines", ...others, hoverinfo: "skip", line: { color: color("line"), width: 1.2 } },
    { type: "scatter", mode: "lines", x: [0, most], y: [0, most], hoverinfo: "skip", line: { color: color("soft"), width: 1.2, dash: "dash" } },
    {
      type: "scatter", mode: "lines+markers", x: expected, y: observed, line: { color: color("run-1"), width: 2 }, marker: { size: 4 },
      hovertemplate: "Gaussian %{x:.3~g}, observed %{y:.3~g}<extra></extra>",
    },
  ];
  draw(chart, traces, {
    hovermode: "closest", xaxis: axis("expected squared distance (chi-square)", { rangemode: "tozero" }),
    yaxis: axis("observed", { rangemode: "tozero", range: [0, reach(clusters, chosen, most)] }),
  });
  keys(chart).replaceChildren(
    key(name, "line", color("run-1")), key("other classes", "line", color("line")), key("Gaussian", "line", color("soft")),
  );
}

// The selected class is always in range; other classes may be cut off.
function reach(clusters, chosen, most) {
  const highest = (cluster) => Math.max(...cluster.observed.filter((value) => value !== null));
  const typical = clusters.map(highest).sort((a, b) => a - b)[Math.floor(clusters.length / 2)];
  return 1.05 * Math.max(most, highest(clusters[chosen]), Math.min(typical, 3 * most));
}
