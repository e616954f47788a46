// Entries of a drawing's legend are reached with the tab key, and chosen with enter or space as with a click.
(() => {
  "use strict";
  const embed = window.vegaEmbed;
  const ERRORS = 1; // vega.Error
  const ENTRIES = ".name_legend_labels text";

  function reach(place) {
    for (const entry of place.querySelectorAll(ENTRIES)) {
      if (entry.hasAttribute("tabindex")) continue;
      entry.setAttribute("tabindex", "0");
      entry.setAttribute("role", "button");
      entry.style.cursor = "pointer";
      entry.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        const { x, y, width, height } = entry.getBoundingClientRect();
        const at = { clientX: x + width / 2, clientY: y + height / 2, shiftKey: event.shiftKey };
        entry.dispatchEvent(new MouseEvent("click", { bubbles: true, view: window, ...at }));
      });
    }
  }

  window.vegaEmbed = async (place, ...others) => {
    const made = await embed(place, ...others);
    // A choice that leaves no points is a choice; that an axis then has no extent is not worth a warning.
    made.view.logLevel(ERRORS);
    const root = made.view.container();
    if (root) {
      reach(root);
      new MutationObserver(() => reach(root)).observe(root, { childList: true, subtree: true });
    }
    return made;
  };
})();
