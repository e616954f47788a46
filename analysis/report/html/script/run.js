// A run: its configuration, environment and last lines, in a dialog.

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
