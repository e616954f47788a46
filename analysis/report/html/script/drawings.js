// Drawings: made one after another, and told what is chosen.

const views = new Map(); // by the place of the drawing

function known(view, name) {
  try {
    view.signal(name);
    return true;
  } catch {
    return false; // a drawing without this choice
  }
}

function tell(view) {
  const values = { framework: chosen.framework, model: chosen.model, strategy: chosen.strategy };
  for (const input of all(".choose .switch input")) if (input.dataset.set) values[input.name] = input.checked;
  values.every = !root.classList.contains("best");
  for (const [name, value] of Object.entries(values)) if (known(view, name)) view.signal(name, value);
  return view.runAsync();
}

// A legend of short names stands beside the lines where at most this share of the width is left to it.
const [BESIDE, LETTER, SYMBOL] = [0.42, 6.2, 34]; // pixels of a letter and of what stands before it
const isBeside = (place) =>
  place.dataset.letters && LETTER * place.dataset.letters + SYMBOL < BESIDE * place.clientWidth;

async function specOf(place) {
  const spec = await documentOf(`spec-${place.dataset.chart}`);
  place.dataset.beside = isBeside(place) ? "yes" : "";
  if (place.dataset.beside) Object.assign(spec.config.legend, { orient: "right", offset: 4 });
  return spec;
}

async function draw(place, config) {
  // logLevel 1: errors alone; what Vega-Lite warns of while it lays out is not for the reader of the page.
  const tooltip = { theme: "custom", disableDefaultStyle: true };
  const options = { mode: "vega-lite", renderer: "svg", actions: false, config, tooltip, logLevel: 1 };
  const name = place.getAttribute("aria-label");
  try {
    const { view } = await vegaEmbed(place, await specOf(place), options);
    place.setAttribute("role", "img"); // Vega names every drawing "Vega visualization"
    place.setAttribute("aria-label", name);
    place.removeAttribute("aria-roledescription");
    for (const input of all(".choose .switch input"))
      if (!input.dataset.set && !input.dataset.seen && known(view, input.name)) {
        input.checked = view.signal(input.name);
        input.dataset.seen = "yes";
        input.closest("label").hidden = false;
      }
    views.set(place, view);
    if (chosen.any || (known(view, "every") && !root.classList.contains("best"))) await tell(view);
  } catch (error) {
    place.textContent = `This drawing failed: ${error.message}. Its figures are in the tables.`;
  }
}

async function drawAll() {
  const places = all(".vega");
  if (!places.length) return;
  const config = await documentOf("vega-config");
  for (const input of all(".choose .switch input")) input.addEventListener("input", () => (input.dataset.set = "yes"));
  for (const place of places) {
    await draw(place, config);
    await new Promise((resume) => setTimeout(resume)); // the page answers in between
  }
  root.dataset.drawn = "yes";
  // Drawings in folds, too, learn their width late.
  const moved = new ResizeObserver((entries) => {
    for (const { target } of entries)
      if (target.clientWidth && Boolean(target.dataset.beside) !== Boolean(isBeside(target))) redraw(target, config);
  });
  places.filter((place) => place.dataset.letters).forEach((place) => moved.observe(place));
}

async function redraw(place, config) {
  views.get(place)?.finalize();
  await draw(place, config);
  await tell(views.get(place));
}
