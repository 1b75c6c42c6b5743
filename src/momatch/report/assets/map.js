// The latent space: a point per image, the learned centers as X, outliers in other shapes, the image on hover.

const ORIGIN_SHAPES = ["circle", "diamond-open", "triangle-up-open", "square-open", "pentagon-open", "triangle-down-open"];
const COLORINGS = ["class", "prediction", "mistakes", "distance"];
// With more classes, a drop-down list replaces the legend, and the map has no names.
const MOST_CHIPS = 20;
const mapStates = new Map();

function mapState(number) {
  if (!mapStates.has(number)) {
    const { maps, labels, origin } = data.runs[number].map;
    // A pool has few labels; outliers have none.
    const known = labels.filter((k) => k >= 0).length > origin.filter((o) => o === 0).length / 2;
    const coloring = known ? "class" : "prediction";
    mapStates.set(number, { map: Object.keys(maps)[0], coloring, only: null, off: new Set(), view: 0 });
  }
  return mapStates.get(number);
}

function drawMap(chart, number) {
  const run = data.runs[number];
  const state = mapState(number);
  const again = (change) => {
    Object.assign(state, change);
    drawMap(chart, number);
  };
  if (!chart.parentElement.querySelector(":scope > .tools")) {
    const kinds = Object.keys(run.map.maps);
    const unusable = run.map.distance.some((d) => d !== null) ? [] : ["distance"];
    const everything = ["all classes", ...run.classes];
    const pick = run.classes.length > MOST_CHIPS
      ? [picker("Show", everything, 0, (place) => again({ only: place ? place - 1 : null }))] : [];
    tools(chart).append(
      choice("Map", kinds, state.map, (map) => again({ map, view: state.view + 1 })),
      choice("Colour by", COLORINGS, state.coloring, (coloring) => again({ coloring }), unusable), ...pick,
    );
  }
  const traces = [...imageTraces(run, state), ...ringTrace(run, state), ...centerTraces(run, state)];
  const bare = { title: { text: "" }, showgrid: false, zeroline: false, showticklabels: false, automargin: false };
  const frame = { showline: true, mirror: true, linecolor: color("line"), fixedrange: false };
  const mouse = matchMedia("(hover: hover)").matches;
  draw(chart, traces, {
    hovermode: "closest", hoverdistance: 12, margin: { l: 1, r: 1, t: 1, b: 1 }, uirevision: state.view,
    // Touch scrolls the page; a mouse pans the map.
    dragmode: mouse ? "pan" : false, annotations: nameplates(chart, run, state),
    xaxis: axis("", { ...bare, ...frame }), yaxis: axis("", { ...bare, ...frame, scaleanchor: "x" }),
  }, ["zoom2d", "pan2d", "resetScale2d", "toImage"]);
  if (!chart.dataset.listens) listen(chart, number);
  mapKeys(chart, run, state, again);
}

function pointColors(run, state) {
  const { labels, predicted, origin, distance } = run.map;
  const K = run.classes.length;
  const neutral = color("soft");
  if (state.coloring === "prediction") return predicted.map((k) => classColor(k, K));
  if (state.coloring === "distance") return distance;
  if (state.coloring === "mistakes") {
    const [right, wrong] = [color("line"), color("warm")];
    return labels.map((k, i) => (k < 0 ? (origin[i] ? neutral : right) : k === predicted[i] ? right : wrong));
  }
  return labels.map((k) => (k < 0 ? neutral : classColor(k, K)));
}

function imageTraces(run, state) {
  const { maps, origins, origin, labels, predicted, distance } = run.map;
  const places = maps[state.map];
  const colors = pointColors(run, state);
  const classes = state.coloring === "prediction" ? predicted : labels;
  const known = distance.filter((d) => d !== null).sort((a, b) => a - b);
  const most = known[Math.floor(0.98 * known.length)] ?? 1;
  return origins.map((name, o) => {
    const chosen = origin.map((each, i) => (each === o ? i : -1)).filter((i) => i >= 0);
    const take = (values) => chosen.map((i) => values[i]);
    const scale = { colorscale: "Viridis", cmin: 0, cmax: most, showscale: o === 0, colorbar: distanceBar() };
    return {
      type: "scatter", mode: "markers", name: plain(name), x: take(places.x), y: take(places.y), customdata: chosen,
      hoverinfo: "none", visible: !state.off.has(`origin ${o}`),
      marker: {
        symbol: ORIGIN_SHAPES[o % ORIGIN_SHAPES.length], size: 6, color: take(colors),
        opacity: chosen.map((i) => (state.only !== null && classes[i] !== state.only ? 0.06 : 0.75)),
        line: { width: o ? 1.2 : 0 }, ...(state.coloring === "distance" ? scale : {}),
      },
    };
  });
}

function distanceBar() {
  const title = { text: "distance", side: "right", font: { size: 11 } };
  return { title, thickness: 8, len: 0.5, x: 0.99, xanchor: "right", outlinewidth: 0, tickfont: { size: 10, color: color("soft") } };
}

function ringTrace(run, state) {
  const { maps, flagged, origin } = run.map;
  const chosen = flagged.map((f, i) => (f && !state.off.has(`origin ${origin[i]}`) ? i : -1)).filter((i) => i >= 0);
  const places = maps[state.map];
  return [{
    type: "scatter", mode: "markers", x: chosen.map((i) => places.x[i]), y: chosen.map((i) => places.y[i]),
    hoverinfo: "skip", visible: !state.off.has("rings"),
    marker: { symbol: "circle-open", size: 12, color: color("ink"), opacity: state.only === null ? 0.35 : 0.06, line: { width: 1 } },
  }];
}

function centerTraces(run, state) {
  const { x, y } = run.map.centers[state.map];
  const K = run.classes.length;
  if (!x.length) return [];
  return [{
    type: "scatter", mode: "markers", x, y, customdata: x.map((_, k) => -1 - k), hoverinfo: "none",
    visible: !state.off.has("centers"),
    marker: {
      symbol: "x", size: K <= MOST_CHIPS ? 13 : 9, color: x.map((_, k) => classColor(k, K)),
      opacity: x.map((_, k) => (state.only !== null && k !== state.only ? 0.15 : 1)),
      line: { color: color("paper"), width: 2 },
    },
  }];
}

// Where the name of each class belongs: at its center, or in the middle of its points if there are no centers.
function anchors(run, state) {
  const { maps, centers, labels } = run.map;
  if (centers[state.map].x.length) return state.off.has("centers") ? [] : run.classes.map((_, k) => [centers[state.map].x[k], centers[state.map].y[k]]);
  const middle = (values, k) => {
    const own = values.filter((v, i) => labels[i] === k && v !== null).sort((a, b) => a - b);
    return own[Math.floor(own.length / 2)] ?? null;
  };
  return run.classes.map((_, k) => [middle(maps[state.map].x, k), middle(maps[state.map].y, k)]);
}

// Names of classes beside their anchors, with a line to them. Each takes the nearest place that covers no other name or
// anchor; the places are in pixels, so they hold at any zoom.
function nameplates(chart, run, state) {
  const K = run.classes.length;
  const { x, y } = run.map.maps[state.map];
  const at = anchors(run, state);
  if (K > MOST_CHIPS || !at.length) return [];
  const all = [...x.map((v, i) => [v, y[i]]), ...at].filter(([u, v]) => u !== null && v !== null);
  const span = (j) => Math.max(...all.map((place) => place[j])) - Math.min(...all.map((place) => place[j])) || 1;
  // The axes have one scale; Plotly leaves a margin around the points.
  const scale = 0.9 * Math.min(chart.clientWidth / span(0), chart.clientHeight / span(1));
  const pixels = at.map(([u, v]) => (u === null ? null : [u * scale, -v * scale]));
  const taken = pixels.filter(Boolean).map(([u, v]) => ({ u, v, w: 16, h: 16 }));
  const plates = [];
  for (const [k, place] of pixels.entries()) {
    if (!place || (state.only !== null && k !== state.only)) continue;
    const size = { w: 14 + 8 * Math.min(16, Array.from(run.classes[k]).length), h: 24 };
    const free = offsets(size).find(([du, dv]) => !taken.some((other) => overlaps(other, { u: place[0] + du, v: place[1] + dv, ...size })));
    const [du, dv] = free ?? [0, -22];
    taken.push({ u: place[0] + du, v: place[1] + dv, ...size });
    plates.push({
      x: at[k][0], y: at[k][1], ax: du, ay: dv, text: `<b>${short(run.classes[k])}</b>`, showarrow: true, arrowhead: 0,
      arrowwidth: 1, arrowcolor: color("soft"), standoff: 7, font: { size: 13, color: color("ink") },
      bgcolor: color("paper"), bordercolor: classColor(k, K), borderwidth: 1, borderpad: 2, opacity: 0.92,
      captureevents: false,
    });
  }
  return plates;
}

// Offsets from an anchor to the middle of its name, nearest first.
function offsets({ w, h }) {
  const found = [];
  for (const distance of [0, 16, 36, 60, 90, 130]) {
    for (let turn = 0; turn < 12; turn += 1) {
      const angle = -Math.PI / 2 + (turn * Math.PI) / 6;
      found.push([Math.cos(angle) * (w / 2 + 10 + distance), Math.sin(angle) * (h / 2 + 10 + distance)]);
    }
  }
  return found.sort(([a, b], [c, d]) => Math.hypot(a, b) - Math.hypot(c, d));
}

function overlaps(one, other) {
  return Math.abs(one.u - other.u) < (one.w + other.w) / 2 && Math.abs(one.v - other.v) < (one.h + other.h) / 2;
}

function mapKeys(chart, run, state, again) {
  const { origins, centers, flagged } = run.map;
  const toggle = (name) => () => {
    state.off.has(name) ? state.off.delete(name) : state.off.add(name);
    again({});
  };
  const pressable = (name, text, shape, tint) => {
    const element = key(text, shape, tint, toggle(name));
    element.setAttribute("aria-pressed", String(!state.off.has(name)));
    return element;
  };
  const row = origins.map((name, o) => pressable(`origin ${o}`, name, ORIGIN_SHAPES[o % ORIGIN_SHAPES.length], color("soft")));
  if (centers[state.map].x.length) row.push(pressable("centers", "learned centers", "x", color("ink")));
  if (flagged.some(Boolean)) row.push(pressable("rings", "flagged as outlier", "circle-open", color("ink")));
  const colored = state.coloring === "class" || state.coloring === "prediction";
  const classes = colored && run.classes.length <= MOST_CHIPS ? run.classes : [];
  for (const [k, name] of classes.entries()) {
    const element = key(name, "circle", classColor(k, run.classes.length), () => again({ only: state.only === k ? null : k }));
    element.setAttribute("aria-pressed", String(state.only === null || state.only === k));
    row.push(element);
  }
  const scrolled = keys(chart).scrollTop;
  keys(chart).replaceChildren(...row);
  keys(chart).scrollTop = scrolled;
}

function listen(chart, number) {
  chart.dataset.listens = "yes";
  const show = ({ points, event }) => {
    const i = points[0].customdata;
    if (i === undefined || !event) return;
    // A touch event has its position in a list.
    const pointer = event.touches?.[0] ?? event.changedTouches?.[0] ?? event;
    if (i < 0) showCard(pointer, null, `Center of ${data.runs[number].classes[-1 - i]}`, []);
    else showPoint(pointer, data.runs[number], i);
  };
  chart.on("plotly_hover", show);
  chart.on("plotly_click", show);
  chart.on("plotly_unhover", hideCard);
}

function showPoint(pointer, run, i) {
  const { origins, origin, labels, predicted, confidence, density, distance, flagged, files, kinds, tiles } = run.map;
  const truth = labels[i] < 0 ? null : run.classes[labels[i]];
  const facts = [["predicted", `${run.classes[predicted[i]]}, ${percent(confidence[i])} confidence`]];
  if (distance[i] !== null) facts.push(["distance", `${decimal(distance[i])} from the nearest ${run.judged ? "class, by the judge" : "center"}`]);
  if (density[i] !== null) facts.push(["log p(x)", decimal(density[i])]);
  facts.push(["from", origins[origin[i]]]);
  if (files?.[i]) facts.push(["file", files[i]]);
  const wrong = truth !== null && labels[i] !== predicted[i] ? "misclassified" : null;
  const warning = [wrong, flagged[i] ? "flagged as outlier" : null].filter(Boolean).join("; ");
  showCard(pointer, tile(kinds[i], tiles[i]), truth ?? (origin[i] ? "Outlier" : "Unlabelled"), facts, warning);
}

// --- The card with the image under the pointer ---

const card = make("div", { className: "card", hidden: true, role: "status" });
document.body.append(card);

function tile(kind, number) {
  const { side, sizes } = data.sheets;
  const [width, height] = sizes[kind];
  const sheet = Math.floor(number / (side * side));
  const place = number % (side * side);
  const element = make("i", { className: `tile sheet-${kind}-${sheet}` });
  element.style.width = `${width}px`;
  element.style.height = `${height}px`;
  element.style.backgroundSize = `${side * width}px auto`;
  element.style.backgroundPosition = `${-(place % side) * width}px ${-Math.floor(place / side) * height}px`;
  return element;
}

function showCard(pointer, picture, title, facts, warning) {
  const list = make("dl");
  for (const [name, value] of facts) list.append(make("dt", { textContent: name }), make("dd", { textContent: value }));
  const words = make("div", {}, make("h4", { textContent: title }), list);
  if (warning) words.append(make("div", { className: "warn", textContent: warning }));
  card.replaceChildren(...(picture ? [picture, words] : [words]));
  card.hidden = false;
  const { width, height } = card.getBoundingClientRect();
  const x = pointer.clientX + 18 + width > innerWidth ? pointer.clientX - 18 - width : pointer.clientX + 18;
  card.style.left = `${Math.max(8, x)}px`;
  card.style.top = `${Math.max(8, Math.min(pointer.clientY - height / 2, innerHeight - height - 8))}px`;
}

function hideCard() {
  card.hidden = true;
}

addEventListener("scroll", hideCard, { passive: true });
