// Small elements around charts. Names are inserted as text, never as markup.

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// The row of controls above a chart, created once; and the legend below it.
function tools(chart) {
  return beside(chart, "tools", (row) => chart.before(row));
}

function keys(chart) {
  return beside(chart, "keys", (row) => chart.after(row));
}

function beside(chart, name, place) {
  const found = chart.parentElement.querySelector(`:scope > .${name}`);
  if (found) return found;
  const row = make("div", { className: name });
  place(row);
  return row;
}

let groups = 0;

// Radio buttons; `changed` is called with the new option. `words` are shown instead of an option's name.
function choice(legend, options, chosen, changed, unusable = [], words = {}) {
  const name = `choice-${groups++}`;
  const set = make("fieldset", { className: "choice" }, make("legend", { textContent: legend }));
  for (const option of options) {
    const input = make("input", { type: "radio", name, value: option, checked: option === chosen, disabled: unusable.includes(option) });
    input.addEventListener("change", () => changed(option));
    set.append(make("label", {}, input, make("span", { textContent: words[option] ?? option })));
  }
  return set;
}

function picker(label, options, chosen, changed) {
  const select = make("select", {}, ...options.map((option, i) => make("option", { value: i, textContent: option })));
  select.value = chosen;
  select.addEventListener("change", () => changed(Number(select.value)));
  return make("label", { className: "pick" }, label, select);
}

const SHAPES = {
  "circle": "M2 8a6 6 0 1 0 12 0a6 6 0 1 0-12 0z",
  "line": "M0 8h16",
  "x": "M3 3l10 10m0-10l-10 10",
  "diamond-open": "M8 1.5l6.5 6.5l-6.5 6.5l-6.5-6.5z",
  "triangle-up-open": "M8 2l7 12h-14z",
  "square-open": "M2.5 2.5h11v11h-11z",
  "pentagon-open": "M8 1.5l6.7 4.9l-2.5 7.8h-8.4l-2.5-7.8z",
  "triangle-down-open": "M8 14l7-12h-14z",
  "circle-open": "M2 8a6 6 0 1 0 12 0a6 6 0 1 0-12 0z",
};

// A legend entry; a button if `pressed` is given.
function key(text, shape, tint, pressed = null, title = text) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", SHAPES[shape]);
  path.setAttribute("fill", shape === "circle" ? tint : "none");
  path.setAttribute("stroke", tint);
  path.setAttribute("stroke-width", shape === "circle" ? 0 : shape === "circle-open" ? 1.5 : 2.5);
  svg.append(path);
  const element = make(pressed ? "button" : "span", { className: "key", title }, svg, make("span", { textContent: text }));
  if (pressed) {
    element.setAttribute("type", "button");
    element.addEventListener("click", pressed);
  }
  return element;
}
