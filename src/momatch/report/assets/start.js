// Unpacks plotly.js, then draws the charts one by one from the top, so that the page can be read meanwhile.

const CHARTS = {
  curves: drawCurves, thresholds: drawThresholds, map: drawMap, moments: drawMoments, cells: drawCells,
  quantiles: drawQuantiles, confusion: drawConfusion, calibration: drawCalibration, densities: drawDensities,
};

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function places() {
  return [...document.querySelectorAll(".chart[data-chart]")];
}

function drawOne(chart) {
  // A hidden element has no size to draw into.
  if (!chart.offsetWidth) return;
  try {
    CHARTS[chart.dataset.chart](chart, Number(chart.dataset.number));
  } catch (error) {
    chart.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  }
}

async function drawAll() {
  document.documentElement.dataset.drawn = "no";
  for (const chart of places()) {
    drawOne(chart);
    await new Promise((resume) => setTimeout(resume));
  }
  document.documentElement.dataset.drawn = "yes";
}

function showRuns() {
  hiddenRuns.clear();
  for (const box of document.querySelectorAll("input[data-shows]")) if (!box.checked) hiddenRuns.add(Number(box.dataset.shows));
  for (const part of document.querySelectorAll("[data-run]")) part.classList.toggle("off", hiddenRuns.has(Number(part.dataset.run)));
  drawAll();
}

// Highlights the link to the section on screen.
function followReading() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      const link = links.get(target.id);
      link.classList.toggle("here", isIntersecting);
      if (isIntersecting) link.parentElement.scrollTo({ left: link.offsetLeft - 80 });
    }
  }, { rootMargin: "-30% 0px -69% 0px" });
  for (const section of document.querySelectorAll("section[id]")) watch.observe(section);
}

async function start() {
  followReading();
  for (const box of document.querySelectorAll("input[data-shows]")) box.addEventListener("change", showRuns);
  if (typeof DecompressionStream === "undefined") {
    for (const chart of places()) chart.textContent = "The charts need a browser from 2023 or later.";
    return;
  }
  if (places().length) {
    const script = document.createElement("script");
    script.textContent = await unpack(document.getElementById("plotly").textContent);
    document.head.append(script);
  }
  await drawAll();
  darkScheme.addEventListener("change", drawAll);
}

start();
