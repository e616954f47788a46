// The controls: one choice for all tables, lists and drawings.

const chosen = { framework: "", model: "", strategy: "", status: "", words: [], any: false };
let rows = [];

function offerChoice() {
  const form = one(".choose");
  rows = all(".rows, .answers").map((element) => new Rows(element));
  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const found = rows.find((of) => of.element.parentElement === entry.target);
        found.near = entry.isIntersecting;
        if (found.near && found.dirty) found.apply();
      }
    },
    { rootMargin: "600px" },
  );
  for (const of of rows) {
    of.dirty = true;
    near.observe(of.element.parentElement);
  }
  let waiting = 0;
  const changed = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => choose(form), 120);
  };
  form.addEventListener("input", changed);
  form.addEventListener("reset", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen.any && !one("dialog[open]") && one("#definition").hidden) form.reset();
  });
  form.hidden = false;
  form.elements.every?.addEventListener("input", () => showBest(form));
  showBest(form);
}

// Of many series the best ones, until all are asked for or something is chosen.
function showBest(form) {
  const every = form.elements.every;
  if (!every) return;
  every.closest("label").hidden = false;
  root.classList.toggle("best", !every.checked && !chosen.any);
}

async function choose(form) {
  for (const name of ["framework", "model", "strategy", "status"]) chosen[name] = form.elements[name]?.value ?? "";
  chosen.words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  chosen.any = Boolean(chosen.framework || chosen.model || chosen.strategy || chosen.status || chosen.words.length);
  one("[type=reset]", form).hidden = !chosen.any;
  showBest(form);
  const points = rows.find((of) => of.element.id === "table-points");
  for (const of of rows) of.most = STEP;
  for (const of of rows) of.dirty = !of.near && of !== points;
  await Promise.all(rows.filter((of) => !of.dirty).map((of) => of.apply()));
  one("output", form).textContent = chosen.any ? `${counted(points.matching)} of ${counted(points.items.length)} points` : "";
  for (const view of views.values()) tell(view);
}
