// Rows of a table or a list: folded, filtered, sorted, a few hundred shown at once.

const STEP = 300; // rows of a table that are shown at once; more on demand, since a browser lays out all of them
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
