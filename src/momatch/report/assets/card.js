// The card that shows an image and what the model says of it.

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
