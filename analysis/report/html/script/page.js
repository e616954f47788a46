// Themes, definitions, folds and printing; starts everything.

// ---- Theme: the system's, until one is chosen; kept for the session where there is storage.

function offerThemes() {
  const KEY = "scaling-report-theme";
  const set = (theme) => (theme ? (root.dataset.theme = theme) : delete root.dataset.theme);
  let kept = "";
  try {
    kept = sessionStorage.getItem(KEY) || "";
  } catch {} // a file without storage: the switch works all the same
  const choice = one(".theme");
  for (const input of all("input", choice)) {
    input.checked = input.value === kept;
    input.addEventListener("change", () => {
      set(input.value);
      try {
        sessionStorage.setItem(KEY, input.value);
      } catch {}
    });
  }
  set(kept);
  choice.hidden = false;
}

// ---- Definitions: shown at the "?", once at a time; Escape and a click elsewhere close them.

function offerDefinitions() {
  const box = one("#definition");
  let at = null;
  const close = (back = false) => {
    if (!at) return;
    at.setAttribute("aria-expanded", "false");
    if (back) at.focus();
    at = null;
    box.hidden = true;
  };
  const open = (mark) => {
    close();
    at = mark;
    mark.setAttribute("aria-expanded", "true");
    const term = document.getElementById(mark.dataset.term);
    box.replaceChildren(made("b", {}, one("dt", term).textContent), one("dd", term).textContent);
    mark.after(box); // next to be read and reached
    box.hidden = false;
    const [own, home] = [mark.getBoundingClientRect(), root.getBoundingClientRect()]; // no ancestor is positioned
    const left = Math.max(8, Math.min(own.left, root.clientWidth - box.offsetWidth - 8));
    const below = own.bottom + box.offsetHeight + 8 < innerHeight || own.top < box.offsetHeight + 8;
    box.style.left = `${left - home.left}px`;
    box.style.top = `${(below ? own.bottom + 6 : own.top - box.offsetHeight - 6) - home.top}px`;
  };
  for (const link of all("a.what")) {
    const mark = made("button", { type: "button", className: "what", textContent: "?" });
    mark.setAttribute("aria-label", link.getAttribute("aria-label"));
    mark.setAttribute("aria-expanded", "false");
    mark.setAttribute("aria-controls", "definition");
    mark.dataset.term = link.hash.slice(1);
    link.replaceWith(mark);
  }
  document.addEventListener("click", (event) => {
    const mark = event.target.closest?.("button.what");
    if (mark && mark !== at) open(mark);
    else if (mark || !event.target.closest?.("#definition")) close();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && close(true));
}

// ---- Folds: opened by a link to what is in them; drawings in them learn their width when it is known.

function followLinks() {
  const follow = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const folds = [one(":scope > details.part", target), ...all("details").filter((fold) => fold.contains(target))];
    for (const fold of folds.filter(Boolean)) fold.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (link && link.hash === location.hash) follow(); // no change of the address
  });
  document.addEventListener("toggle", (event) => event.target.open && one(".vega", event.target) && dispatchEvent(new Event("resize")), true);
  follow();
}

function openForPrint() {
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    closed.forEach((fold) => (fold.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((fold) => (fold.open = false)));
}

offerThemes();
offerChoice();
offerDefinitions();
followLinks();
openForPrint();
drawAll();
