// What the page does in a browser: themes, drawings, sorted and filtered tables, folded rows, the details of a run.
// Words of runs come to the page as escaped HTML or as JSON, and from JSON as text nodes only.
"use strict";
(() => {
  const STEP = 300; // rows of a table that are shown at once; more on demand, since a browser lays out all of them
  const root = document.documentElement;
  const all = (selector, of = document) => [...of.querySelectorAll(selector)];
  const one = (selector, of = document) => of.querySelector(selector);
  const made = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const counted = (n) => n.toLocaleString("en");

  async function inflated(script) {
    const bytes = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }

  async function documentOf(id) {
    const script = document.getElementById(id);
    return JSON.parse(script.type === "application/json" ? script.textContent : await inflated(script));
  }

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

  // ---- Rows: of a table or a list; folded, filtered, sorted, shown some hundred at once.

  const UNITS = { µs: 1e-6, ms: 1e-3, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, kJ: 1e3, MJ: 1e6, GJ: 1e9 };
  const NUMBER = /^[≤+]?\s*(-?[\d,]+(?:\.\d+)?(?:e[-+]?\d+)?)\s*([^\s(]*)/;
  const order = new Intl.Collator("en", { numeric: true });

  // The cell's own words, without what stands small below them; a number in its base unit where it is one.
  function valueOf(cell) {
    const own = [...cell.childNodes].filter((node) => !node.classList?.contains("sub"));
    const text = own.map((node) => node.textContent).join("").trim();
    const found = NUMBER.exec(text);
    return found ? Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : text.replace(/^–$/, "");
  }

  function compared(a, b) {
    if (a === "" || b === "") return (a === "") - (b === ""); // what is not known comes last
    return typeof a === "number" && typeof b === "number" ? a - b : order.compare(String(a), String(b));
  }

  class Rows {
    constructor(element) {
      this.element = element;
      this.isTable = element.tagName === "TABLE";
      this.most = STEP;
      this.dirty = false;
      this.near = false;
      this.fold = one("script.folded", element);
      // What is the same in every row stands above the table, and is found there.
      const above = this.isTable ? element.parentElement.previousElementSibling : null;
      this.same = above?.matches(".same") ? above.textContent : "";
      this.foot = made("p", { className: "foot", hidden: true });
      (this.isTable ? element.parentElement : element).after(this.foot);
      this.collect();
      if (this.isTable) all("thead th", element).forEach((head) => this.offerSort(head));
    }

    collect() {
      const rows = this.isTable ? all("tbody > tr:not(.series)", this.element) : [...this.element.children];
      this.items = [];
      let label = null;
      for (const row of rows) {
        if (!row.matches("tr, details, li:not(.foot)")) continue;
        const home = row.parentElement;
        const head = this.isTable ? one("tr.series", home) : null;
        if (head && head.nextElementSibling === row) label = one(".label", head);
        const own = row.closest("[data-framework]")?.dataset;
        const [name, whole] = label ? [label.textContent, label.dataset.words] : ["", ""];
        row.classList.toggle("further", home.matches(".further")); // wherever sorting puts it
        this.items.push({ row, home, label: name, whole, own, status: row.dataset.status, matches: true });
      }
      this.heads = all("tr.series", this.element);
    }

    get folds() {
      return this.fold ? Number(this.fold.dataset.rows) : 0;
    }

    async unfold() {
      if (!this.fold) return;
      const fold = this.fold;
      this.fold = null;
      const html = await inflated(fold); // escaped by the same templates as the page
      const template = made("template");
      template.innerHTML = this.isTable ? `<table>${html}</table>` : html;
      fold.before(...(this.isTable ? template.content.firstChild.children : template.content.childNodes));
      fold.remove();
      one("tfoot, .foot", this.element)?.remove();
      this.collect();
    }

    matches(item) {
      for (const name of ["framework", "model", "strategy"])
        if (chosen[name] && item.own && item.own[name] !== chosen[name]) return false;
      if (chosen.status && item.status && !item.status.includes(chosen.status)) return false;
      if (!chosen.words.length) return true;
      item.words ??= `${item.label} ${item.whole} ${item.row.textContent} ${this.same}`.toLowerCase();
      return chosen.words.every((word) => item.words.includes(word));
    }

    async apply() {
      this.dirty = false;
      if (chosen.any || this.sort) await this.unfold();
      let matching = 0;
      const filled = new Set();
      for (const item of this.sorted ?? this.items) {
        const fits = this.matches(item);
        matching += fits;
        item.row.hidden = !fits || matching > this.most;
        if (item.row.hidden) continue;
        filled.add(item.label);
        offerDetails(item.row);
      }
      for (const head of this.heads)
        head.hidden = Boolean(this.sort) || !filled.has(one(".label", head).textContent);
      this.say(matching);
    }

    say(matching) {
      const hidden = Math.max(0, matching - this.most) + this.folds;
      const words = [];
      if (chosen.any) words.push(`${counted(matching)} of ${counted(this.items.length)} rows match the filter. `);
      const own = one("tfoot, .foot", this.element);
      if (own) own.hidden = true; // it is for who has no script
      if (hidden) {
        const more = made("button", { type: "button", textContent: `Show ${counted(Math.min(hidden, 1000))} more` });
        more.addEventListener("click", async () => {
          await this.unfold();
          this.most += 1000;
          this.apply();
        });
        words.push(`${counted(hidden)} rows are folded. `, more);
      }
      this.foot.replaceChildren(...words);
      this.foot.hidden = !words.length;
      this.matching = matching;
    }

    offerSort(head) {
      if (!head.textContent.trim()) return;
      const button = made("button", { type: "button", title: "Sort by this column" });
      button.append(...[...head.childNodes].filter((node) => !node.classList?.contains("what")));
      head.prepend(button);
      button.addEventListener("click", () => this.sortBy(head));
    }

    // In turn: the largest first (of words, the first), the other way round, and back as it was.
    async sortBy(head) {
      await this.unfold();
      const column = head.cellIndex;
      const value = new Map(this.items.map((item) => [item, item.row.cells[column] ? valueOf(item.row.cells[column]) : ""]));
      const numbers = [...value.values()].some((v) => typeof v === "number");
      const turns = numbers ? ["descending", "ascending", null] : ["ascending", "descending", null];
      const now = this.sort?.column === column ? this.sort.way : null;
      const way = turns[(turns.indexOf(now) + 1) % 3];
      all("th[aria-sort]", this.element).forEach((th) => th.removeAttribute("aria-sort"));
      this.sort = way ? { column, way } : null;
      if (!way) return this.restore();
      head.setAttribute("aria-sort", way);
      const sign = way === "ascending" ? 1 : -1;
      this.sorted = [...this.items].sort((a, b) => {
        const [x, y] = [value.get(a), value.get(b)];
        return x === "" || y === "" ? compared(x, y) : sign * compared(x, y);
      });
      this.body ??= this.element.insertBefore(made("tbody"), one("tbody", this.element));
      for (const item of this.sorted) {
        if (item.label && !item.named) {
          item.named = made("span", { className: "sub of", textContent: ` ${item.label}` });
          item.row.cells[0].append(item.named);
        }
        this.body.append(item.row);
      }
      await this.apply();
    }

    async restore() {
      this.sorted = null;
      for (const item of this.items) {
        item.named?.remove();
        item.named = null;
        item.home.append(item.row);
      }
      await this.apply();
    }
  }

  // ---- The controls: one choice for all tables, lists and drawings.

  const chosen = { framework: "", model: "", strategy: "", status: "", words: [], any: false };
  const views = new Map(); // by the place of the drawing
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

  // ---- Drawings

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

  // ---- A run: its configuration, environment and last lines

  let details = null;

  function offerDetails(row) {
    const code = row.tagName === "TR" ? one("td[data-label='Run'] > code", row) : one("details.run > summary > code", row.parentElement) && one("summary > code", row);
    if (!code || row.dataset.opens) return;
    row.dataset.opens = "yes";
    const open = made("button", { type: "button", className: "opens" });
    open.addEventListener("click", () => showRun(code.textContent));
    if (row.tagName === "TR") {
      open.append(code.cloneNode(true));
      code.replaceWith(open);
    } else {
      open.textContent = "whole configuration";
      row.append(open);
    }
  }

  const pairs = (entries, className = "") => {
    const list = made("dl", { className });
    for (const [key, value] of entries) list.append(made("div", {}, made("dt", {}, key), made("dd", {}, value)));
    return list;
  };

  async function showRun(id) {
    details ??= documentOf("details");
    const { runs, environments, ...halves } = await details;
    const run = runs[id];
    const dialog = one("#run");
    const close = made("button", { type: "button", className: "close", textContent: "Close", onclick: () => dialog.close() });
    const note = (textContent) => made("p", { className: "note", textContent });
    const known = { configuration: run.configuration, environment: environments?.[run.environment] };
    const own = Object.keys(halves).flatMap((half) =>
      halves[half].differing.filter((key) => key in (known[half] ?? {})).map((key) => [key, known[half][key]]),
    );
    const whole = (half, otherwise) => {
      const every = Object.entries({ ...halves[half].shared, ...known[half] });
      return known[half] ? pairs(every.sort(([a], [b]) => order.compare(a, b)), "keys") : note(otherwise);
    };
    dialog.replaceChildren(
      close,
      made("h2", { id: "run-name", textContent: id }),
      pairs([["Status", run.status], ...run.facts], "facts"),
      ...(own.length ? [made("h3", { textContent: "Differs from other runs in" }), pairs(own, "keys")] : []),
      made("h3", { textContent: `Last lines of stderr${run.of && run.lines.length ? ` of ${run.of}` : ""}` }),
      run.lines.length ? made("pre", { tabIndex: 0, textContent: run.lines.join("\n") }) : note("None."),
      made("h3", { textContent: "Configuration" }),
      whole("configuration", "Its spec.json could not be read."),
      made("h3", { textContent: "Environment" }),
      whole("environment", environments ? "It did not record one." : "Not in this page: env.json in its folder has it."),
    );
    dialog.showModal();
    dialog.scrollTop = 0;
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
})();
