// Colours and layout that all charts share. Colours come from the style sheet, so that charts follow light and dark mode.

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const FONT = getComputedStyle(document.body).fontFamily;
const data = JSON.parse(document.getElementById("data").textContent);

// Cached, because reading a style after each change would force a new layout of the page.
const colors = new Map();
darkScheme.addEventListener("change", () => colors.clear());

function color(name) {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colors.get(name);
}

function runColor(run) {
  return color(`run-${run % 8}`);
}

// A, B, ..., Z, AA, ... as formats.py names runs.
function letter(run) {
  return (run >= 26 ? letter(Math.floor(run / 26) - 1) : "") + String.fromCharCode(65 + (run % 26));
}

// Distinguishable with all common forms of colour blindness; further classes take colours around the wheel.
const CLASS_COLORS = {
  light: ["#0072b2", "#e08a00", "#009e73", "#c8430a", "#cc6fa4", "#3fa9e6", "#8a8500", "#7d5bbe", "#a01f42", "#6f7c89"],
  dark: ["#4aa8e8", "#f5b23c", "#2fc79a", "#ff7d4a", "#ea9cc7", "#93d4ff", "#c9c23a", "#ad90ee", "#ee6f8d", "#a3b0bd"],
};

function classColor(k, classes) {
  const palette = CLASS_COLORS[darkScheme.matches ? "dark" : "light"];
  if (classes <= palette.length) return palette[k];
  // The golden angle keeps neighbours apart for any number of classes.
  const lightness = (darkScheme.matches ? [62, 72, 54] : [42, 52, 34])[k % 3];
  return `hsl(${Math.round((137.508 * k) % 360)}, 62%, ${lightness}%)`;
}

// Plotly interprets some markup in every text; names must not be interpreted.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function short(text, most = 16) {
  const letters = Array.from(String(text));
  return plain(letters.length <= most ? text : letters.slice(0, most - 1).join("") + "…");
}

function percent(value, digits = 1) {
  return value === null ? "–" : `${(100 * value).toFixed(digits)}\u00a0%`;
}

function decimal(value) {
  if (value === null) return "–";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

function axis(title, more = {}) {
  return {
    title: { text: title, font: { size: 12, color: color("soft") }, standoff: 8 },
    gridcolor: color("line"), linecolor: color("line"), zeroline: false, automargin: true, fixedrange: true, ticks: "",
    ticklabeloverflow: "allow",
    tickfont: { size: 11, color: color("soft") }, ...more,
  };
}

function layout(more) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
    font: { family: FONT, size: 12, color: color("ink") },
    margin: { l: 44, r: 10, t: 8, b: 36 }, dragmode: false,
    hoverlabel: {
      bgcolor: color("paper"), bordercolor: color("line"), align: "left",
      font: { family: FONT, size: 12, color: color("ink") },
    },
    ...more,
  };
}

function draw(element, traces, more, buttons = ["toImage"]) {
  // The buttons are too small for touch.
  const displayModeBar = matchMedia("(hover: hover)").matches ? "hover" : false;
  const config = { displaylogo: false, displayModeBar, responsive: true, modeBarButtons: [buttons], doubleClick: "reset" };
  const looks = layout(more);
  looks.modebar = { color: color("faint"), activecolor: color("ink"), bgcolor: "rgba(0,0,0,0)" };
  return Plotly.react(element, traces, looks, config);
}

// The colour bar of a heatmap: at its top, where it is visible however tall the heatmap is.
function colorBar(more) {
  return {
    thickness: 10, outlinewidth: 0, lenmode: "pixels", len: 260, y: 1, yanchor: "top", tickfont: { size: 11, color: color("soft") }, ...more,
  };
}

// From the background to a colour: for heatmaps, in light and dark mode.
function scaleTo(name) {
  return [[0, color("card")], [1, color(name)]];
}
