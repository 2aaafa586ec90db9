// What the theme leaves out for readers who use a keyboard or a screen reader.
window.addEventListener("load", () => {
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  // Wide code, tables and pictures scroll, also with the arrow keys once they have the focus.
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, p:has(> img.wide)")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
});
