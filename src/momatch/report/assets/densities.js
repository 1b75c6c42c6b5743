// Histograms of log p(x) for test images and outliers.

const densityStates = new Map();

function drawDensities(chart, number) {
  const states = data.runs[number].densities;
  const names = Object.keys(states);
  if (!names.length) {
    chart.textContent = "The log density is not finite for any image.";
    return;
  }
  // Outliers are scored by the judge; without one by the refitted mixture, if there is one.
  const state = densityStates.get(number) ?? (names.includes("judge") ? "judge" : names.at(-1));
  if (names.length > 1 && !chart.parentElement.querySelector(":scope > .tools")) {
    const words = names.includes("judge") ? { "as trained": "head as trained", "refitted": "head refitted" } : {};
    tools(chart).append(choice("Model of the density", names, state, (name) => {
      densityStates.set(number, name);
      drawDensities(chart, number);
    }, [], words));
  }
  const { edges, origins } = states[state];
  const outlines = origins.map(({ name, share, n }, o) => {
    // A flat step over each bin, down to zero at both ends.
    const x = edges.flatMap((edge) => [edge, edge]);
    const y = [0, ...share.flatMap((value) => [value, value]), 0];
    return {
      type: "scatter", mode: "lines", x, y, name: plain(name), line: { color: runColor(o), width: 1.8 }, fill: "tozeroy",
      fillcolor: withAlpha(runColor(o), 0.18), hoverinfo: "text", hoveron: "points+fills",
      text: x.map((edge, i) => `${short(name, 30)}: ${percent(y[i])} of ${n.toLocaleString("en")} images<br>log p(x) near ${decimal(edge)}`),
    };
  });
  draw(chart, outlines, {
    hovermode: "closest",
    xaxis: axis("log p(x): less typical ← → more typical", { nticks: 8, showgrid: false }),
    yaxis: axis("share of images", { tickformat: ".0%", nticks: 5, rangemode: "tozero" }),
  });
  keys(chart).replaceChildren(...origins.map(({ name, n, beyond }, o) => {
    const far = beyond ? `; ${percent(beyond / n)} further left, in the first bar` : "";
    return key(`${name} (${n.toLocaleString("en")}${far})`, "circle", runColor(o));
  }));
}

function withAlpha(hex, alpha) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}
