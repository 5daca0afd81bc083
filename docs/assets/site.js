// What scrolls sideways can be reached by the keyboard. The theme wraps tables after loading.
const reach = () => {
  const wide = ".md-typeset__scrollwrap, pre, pre > code, .highlight-ipynb, .jp-OutputArea-output";
  for (const one of document.querySelectorAll(wide))
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
};
for (const delay of [0, 300, 2000]) window.addEventListener("load", () => setTimeout(reach, delay));
window.addEventListener("resize", reach);
