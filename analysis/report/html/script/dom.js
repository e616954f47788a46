// Short names for the document's parts, and the data embedded in it.
// Texts of runs reach the page as escaped HTML or as JSON, and from JSON they become text nodes only.

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
