// The order of search results: guides, then other pages, then names of the API.
const asked = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().split(/\s+/);

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, , score, , kind]) => {
    if (kind === "object" || kind === "index" || page.startsWith("reference/api/")) return score - 100;
    const guide = /^(how-to(?!\/migrate)|tutorial|glossary)/.test(page) ? 30 : 0;
    const measured = /(chaos|performance|scenarios|interop|conformance)$/.test(page) ? -20 : 0;
    const named = !anchor && asked.some((word) => word && title.toLowerCase().includes(word)) ? 30 : 0;
    return score + guide + measured + named + (kind === "title" && !anchor ? 30 : 0);
  },
};
