// The labelling page. The server keeps everything: this shows images, and sends what a person says about them.
"use strict";

const GRID = 12;
const POLL = 1500; // milliseconds
// One key a class; the letters of the buttons are left out.
const KEYS = [..."1234567890qwertyiopdfhjklzxcvbm"];

const element = (id) => document.getElementById(id);
let state = null; // what the server says
let shown = []; // images on the page: {row, name, guess, confidence, known, choice, number}
let current = 0; // position among them
const given = new Map(); // row -> what this page answered
let isGrid = false;
let isBusy = false; // an answer is on its way to the disk
let actions = 0; // what a person did so far
let added = 0; // images that were put on the page so far
let problem = ""; // what went wrong with the last action; it stays until the next one
let lost = ""; // why the server could not be asked how it goes

// The server -----------------------------------------------------------------------------------

async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. What you labelled is on disk; start momatch label again to go on.");
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new Error(`The server sent what this page cannot read (status ${response.status}); see its terminal.`);
  }
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status });
  return answer;
}

// What a person does, one thing at a time: a key pressed before the next image is there does not count for it.
async function attempt(work) {
  if (isBusy) return;
  isBusy = true;
  actions += 1;
  problem = "";
  try {
    await work();
  } catch (error) {
    problem = error.message;
  } finally {
    isBusy = false;
  }
  say();
}

async function refresh() {
  follow(await look());
}

// Look what happened meanwhile: the model, another tab, an edited manifest. A person who does something need not wait for
// it: then what was found is out of date, and dropped.
async function poll() {
  if (isBusy || (state && document.hidden)) return;
  const before = actions;
  try {
    const found = await look();
    if (actions !== before) return;
    lost = "";
    follow(found);
  } catch (error) {
    lost = error.message;
  }
  say();
}

// One look after the other: two at a time would both bring images.
async function watch() {
  await poll();
  setTimeout(watch, POLL);
}

// What the server says, and images to show if there are none on the page.
async function look() {
  const found = await ask(`state?shown=${shown.map((image) => image.row)}`);
  const answered = new Set(found.answered);
  const isEmpty = shown.every((image) => answered.has(image.row));
  return { found, answered, offers: isEmpty && found.is_ready ? await offersBeside([]) : [] };
}

function follow({ found, answered, offers }) {
  state = found;
  shown = shown.filter((image) => !answered.has(image.row));
  add(offers);
  current = Math.min(current, Math.max(0, shown.length - 1));
  draw();
}

async function offersBeside(images) {
  const wanted = (isGrid ? GRID : 1) - images.length;
  return wanted > 0 ? ask(`offers?count=${wanted}&shown=${images.map((image) => image.row)}`) : [];
}

async function fill() {
  add(await offersBeside(shown));
  current = Math.min(current, Math.max(0, shown.length - 1));
}

function add(offers) {
  for (const offer of offers) {
    added += 1;
    shown.push({ ...offer, choice: offer.guess ? { label: offer.guess } : null, number: added });
  }
}

// What a person can do -------------------------------------------------------------------------

const send = (images) =>
  attempt(async () => {
    const answers = images.map((image) => ({ row: image.row, known: image.known, ...image.choice }));
    if (!answers.length) return;
    // On disk before the next image is asked for.
    try {
      state = await ask("answers", { answers });
    } catch (error) {
      // Answered elsewhere meanwhile: the page follows.
      if (error.status === 409) await refresh();
      throw error;
    }
    for (const image of images) given.set(image.row, image.choice);
    shown = shown.filter((image) => !images.includes(image));
    current = 0;
    await fill();
    await refresh();
    focusWork();
  });

function choose(choice) {
  const image = shown[current];
  if (!image || isBusy || !counts(image, choice)) return;
  image.choice = choice;
  if (!isGrid) {
    send([image]);
    return;
  }
  problem = "";
  current = Math.min(current + 1, shown.length - 1);
  draw();
  focusWork();
}

// Nothing is answered that is not on the page, or that nobody can have seen yet.
const accept = () => send((isGrid ? shown : shown.slice(0, 1)).filter((image) => image.choice && counts(image, image.choice)));

// In the grid an image that is left out counts as skipped, so that others can come.
function leaveOut() {
  const image = shown[current];
  if (!image || isBusy) return;
  if (isGrid) image.choice = { status: "skipped" };
  else image.choice = null;
  draw();
}

const undo = () =>
  attempt(async () => {
    const offers = await ask("undo", {});
    if (!offers.length) return;
    const rows = new Set(offers.map((offer) => offer.row));
    const rest = shown.filter((image) => !rows.has(image.row));
    shown = [];
    add(offers);
    // Of a whole grid mostly one answer was wrong: the others need not be given again.
    if (isGrid) for (const image of shown) image.choice = given.get(image.row) ?? image.choice;
    shown = isGrid ? [...shown, ...rest].slice(0, Math.max(GRID, shown.length)) : shown.slice(0, 1);
    current = 0;
    await refresh();
    focusWork();
  });
const toggle = () =>
  attempt(async () => {
    isGrid = !isGrid;
    if (!isGrid) shown = shown.slice(current, current + 1);
    current = 0;
    await fill();
    draw();
    focusWork();
  });
const pick = (offer) =>
  attempt(async () => {
    shown = isGrid ? [...shown] : [];
    add([offer]);
    current = shown.length - 1;
    await refresh();
    focusWork();
  });

function finish() {
  const list = element("commands").querySelector("div");
  list.replaceChildren(
    ...state.commands.map((command) => {
      const line = make("div", { className: "command" }, make("code", { textContent: command }));
      const copy = make("button", { type: "button", textContent: "copy" });
      copy.onclick = async () => {
        await navigator.clipboard.writeText(command);
        copy.textContent = "copied";
      };
      line.append(copy);
      return line;
    }),
  );
  element("manifest").textContent = state.manifest;
  element("commands").showModal();
}

// What is shown --------------------------------------------------------------------------------

// Text is set as text everywhere: names of classes and files may hold anything.
function make(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function say() {
  const text = problem || lost || (state && state.problem) || "";
  element("problem").textContent = text;
  element("problem").hidden = !text;
}

function draw() {
  if (!state) return;
  const labelled = state.classes.reduce((sum, one) => sum + one.labels, 0);
  element("progress").textContent =
    `${labelled} of ${state.images} labelled` +
    (state.none ? `, ${state.none} none of these` : "") +
    (state.skipped ? `, ${state.skipped} skipped` : "") +
    (state.is_fitting ? " · learning …" : "");
  element("mode").lastElementChild.textContent = isGrid ? "one at a time" : "grid";
  drawImages();
  drawClasses();
  element("accuracy").textContent = state.guesses
    ? `The model guessed ${state.right} of ${state.guesses} right before it knew, ` +
      `${state.recent_right} of the last ${state.recent}. These are the images it finds hard.`
    : "";
  drawUnsure();
  element("hint").textContent = hint();
  say();
}

function hint() {
  if (!shown.length) return state.is_ready ? "Nothing is left to label." : "Looking for images to begin with …";
  if (isGrid) return "Arrows move, a key sets the class, Backspace skips one, Enter saves all that have a class or are skipped.";
  return shown[0].choice ? "Enter accepts the guess; another key corrects it." : "Press the key of its class.";
}

function drawImages() {
  const box = element("images");
  box.className = isGrid ? "grid" : "one";
  const old = new Map([...box.children].map((figure) => [figure.dataset.key, figure]));
  box.replaceChildren(
    ...shown.map((image, position) => {
      const key = `${image.number} ${isGrid}`;
      const figure = old.get(key) ?? makeFigure(image, key);
      figure.onclick = () => {
        current = position;
        draw();
      };
      figure.setAttribute("aria-current", String(isGrid && position === current));
      figure.tabIndex = position === current ? 0 : -1;
      figure.lastElementChild.replaceChildren(...caption(image));
      return figure;
    }),
  );
}

function makeFigure(image, key) {
  const figure = make("figure", {});
  figure.dataset.key = key;
  figure.dataset.row = image.row;
  const address = `images/${image.row}${isGrid ? "?size=small" : ""}`;
  const picture = make("img", { src: address, alt: image.name });
  picture.onerror = async () => {
    let reason = "it cannot be shown";
    try {
      await ask(address);
    } catch (error) {
      reason = error.message;
    }
    image.choice = null;
    picture.replaceWith(make("p", { className: "gone", textContent: `${image.name}: ${reason}. Skip it.` }));
    draw();
  };
  figure.append(picture, make("figcaption", {}));
  return figure;
}

// Whether an answer counts: a person can see the image. One that cannot be shown can be skipped, but not given a class.
function counts(image, choice) {
  const figure = [...element("images").children].find((one) => one.dataset.key === `${image.number} ${isGrid}`);
  const picture = figure && figure.querySelector("img");
  if (!figure) return false;
  return picture ? picture.complete && picture.naturalWidth > 0 : !choice.label;
}

function caption(image) {
  const choice = image.choice;
  const what = choice ? (choice.label ?? (choice.status === "none" ? "none of these" : "skipped")) : "";
  const isGuess = choice && choice.label && choice.label === image.guess;
  const parts = isGrid ? [] : [image.name];
  if (what) parts.push(isGrid ? "" : " · ", make("b", { textContent: what }));
  if (isGuess) parts.push(` ${Math.round(100 * image.confidence)} % sure`);
  return parts.length ? parts : [isGrid ? "no class yet" : ""];
}

function drawClasses() {
  const choice = shown[current] ? shown[current].choice : null;
  const buttons = state.classes.map((one, position) =>
    choiceButton(KEYS[position], one.name, one.labels, choice && choice.label === one.name, { label: one.name }),
  );
  const status = choice && choice.status;
  buttons.push(choiceButton("n", "none of these", state.none, status === "none", { status: "none" }));
  buttons.push(choiceButton("s", "skip", state.skipped, status === "skipped", { status: "skipped" }));
  if (isGrid) {
    const all = make("button", { type: "button", onclick: accept }, make("kbd", { textContent: "Enter" }));
    all.append(make("span", { className: "name", textContent: "save all that are marked" }));
    buttons.push(all);
  }
  const focused = [...element("classes").children].indexOf(document.activeElement);
  element("classes").replaceChildren(...buttons);
  if (focused >= 0 && buttons[focused]) buttons[focused].focus();
}

function choiceButton(key, name, count, isChosen, choice) {
  const button = make("button", { type: "button", onclick: () => choose(choice) });
  button.setAttribute("aria-pressed", String(Boolean(isChosen)));
  if (key) button.append(make("kbd", { textContent: key }));
  button.append(make("span", { className: "name", textContent: name }));
  button.append(make("span", { className: "count", textContent: count }));
  return button;
}

function drawUnsure() {
  const rows = new Set(shown.map((image) => image.row));
  const offers = state.unsure.filter((offer) => !rows.has(offer.row));
  element("unsure").hidden = !offers.length;
  const box = element("unsure").querySelector("div");
  const key = offers.map((offer) => offer.row).join();
  if (box.dataset.key === key) return; // the images are there already
  box.dataset.key = key;
  box.replaceChildren(
    ...offers.map((offer) => {
      const title = `${offer.name}: ${offer.guess}, ${Math.round(100 * offer.confidence)} % sure`;
      const button = make("button", { type: "button", title, onclick: () => pick(offer) });
      button.append(make("img", { src: `images/${offer.row}?size=small`, alt: title }));
      return button;
    }),
  );
}

// Keys are for the work again, also if there is no image to go to.
function focusWork() {
  const figure = element("images").children[current];
  if (figure) figure.focus({ preventScroll: !isGrid });
  else document.activeElement.blur();
}

// Keys -----------------------------------------------------------------------------------------

function columns() {
  return isGrid ? getComputedStyle(element("images")).gridTemplateColumns.split(" ").length : 1;
}

function move(step) {
  if (!isGrid) return;
  current = Math.max(0, Math.min(shown.length - 1, current + step));
  draw();
  focusWork();
}

const ACTIONS = {
  u: undo,
  g: toggle,
  ".": finish,
  n: () => choose({ status: "none" }),
  s: () => choose({ status: "skipped" }),
  a: () => element("name").focus(),
  Enter: accept,
  ArrowLeft: () => move(-1),
  ArrowRight: () => move(1),
  ArrowUp: () => move(-columns()),
  ArrowDown: () => move(columns()),
  Backspace: leaveOut,
};

document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || element("commands").open) return;
  if (target instanceof HTMLInputElement) {
    if (event.key === "Escape") focusWork();
    return;
  }
  // A key that is held would answer images that nobody has looked at: it may only move.
  if (event.repeat && (event.key.length === 1 || event.key === "Enter" || event.key === "Backspace")) {
    event.preventDefault();
    return;
  }
  // Enter and Space press the button that has the focus.
  if (target instanceof HTMLButtonElement && (event.key === "Enter" || event.key === " ")) return;
  const position = KEYS.indexOf(event.key);
  if (state && position >= 0 && position < state.classes.length) choose({ label: state.classes[position].name });
  else if (ACTIONS[event.key]) ACTIONS[event.key]();
  else return;
  event.preventDefault();
});

element("mode").onclick = toggle;
element("undo").onclick = undo;
element("finish").onclick = finish;
element("add").onsubmit = (event) => {
  event.preventDefault();
  attempt(async () => {
    state = await ask("classes", { name: element("name").value });
    element("name").value = "";
    draw();
    focusWork();
  });
};

watch();
