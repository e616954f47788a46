// Polls every two seconds; if nothing has changed, the server answers "not modified".
// Texts of runs become text nodes, never markup.
"use strict";

const WAIT = 2000;
const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
let page = 0;
let tag = null;
let asked = null;

function cell(text, link) {
  const td = document.createElement("td");
  const inside = link ? td.appendChild(document.createElement("a")) : td;
  if (link) inside.href = link;
  inside.textContent = text;
  return td;
}

function line(...cells) {
  const tr = document.createElement("tr");
  tr.append(...cells);
  return tr;
}

const shown = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? number.format(value) : value);
const counted = (counts) => Object.entries(counts).map(([status, n]) => `${n} ${status}`).join(", ");

function showStudies(studies) {
  const lines = studies.map((study) =>
    line(cell(study.name, study.url), cell(shown(study.runs)), cell(counted(study.counts)), cell("report", `${study.url}/report.html`)));
  document.querySelector("#studies tbody").replaceChildren(...(lines.length ? lines : [line(cell("no study yet"))]));
}

function showStudy(study) {
  byId("counts").textContent = `${study.runs} runs: ${counted(study.counts)}`;
  byId("progress").max = Math.max(1, study.runs);
  byId("progress").value = study.counts.completed || 0;
  page = study.page;
  byId("page").textContent = `${study.found} runs, page ${study.page + 1} of ${study.last_page + 1}`;
  byId("back").disabled = study.page === 0;
  byId("on").disabled = study.page === study.last_page;
  const options = ["", ...Object.keys(study.counts)];
  const select = byId("status");
  if (!options.includes(select.value)) options.push(select.value);
  if ([...select.options].map((option) => option.value).join() !== options.join()) {
    const chosen = select.value;
    select.replaceChildren(...options.map((status) => new Option(status || "all", status, false, status === chosen)));
  }
  document.querySelector("#runs tbody").replaceChildren(...study.rows.map((run) => {
    const steps = run.steps_done === undefined ? "–" : `${run.steps_done} (${run.phase}; ${shown(run.steps_asked)} to measure)`;
    const sign = run.last_t ? new Date(run.last_t * 1000).toLocaleString() : "–";
    return line(cell(run.run_id), cell(run.status), cell(shown(run.gpus)), cell(steps), cell(shown(run.samples_per_second)),
      cell(shown(run.accuracy)), cell(sign), cell(run.reason || ""));
  }));
}

async function ask() {
  const study = byId("counts");
  const query = study && new URLSearchParams({ status: byId("status").value, text: byId("text").value, page });
  const url = study ? `${study.dataset.url}?${query}` : "/studies.json";
  try {
    const answer = await fetch(url, { headers: tag && asked === url ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.ok) {
      [tag, asked] = [answer.headers.get("ETag"), url];
      (study ? showStudy : showStudies)(await answer.json());
    }
    byId("state").textContent = answer.ok || answer.status === 304 ? "" : await answer.text();
  } catch {
    byId("state").textContent = "The server does not answer: what is shown is old.";
  }
}

function now(to) {
  page = to;
  ask();
}

if (byId("counts")) {
  byId("status").addEventListener("change", () => now(0));
  byId("text").addEventListener("input", () => now(0));
  byId("back").addEventListener("click", () => now(Math.max(0, page - 1)));
  byId("on").addEventListener("click", () => now(page + 1));
}
ask();
setInterval(() => { if (!document.hidden) ask(); }, WAIT);
