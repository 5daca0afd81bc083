"""Style sheet of a report, without external fonts or files."""

CSS = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --ink: #22252a; --soft: #5f6670; --line: #dfe2e6; --card: #f4f5f6;
  --accent: #00609a; --warn: #a84300; --warn-paper: #fdf1e8;
  --good: #00674c; --good-paper: #e9f6f1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181b; --ink: #e6e7e9; --soft: #a0a6ae; --line: #33373d; --card: #1f2226;
    --accent: #6cb8ea; --warn: #ffb27a; --warn-paper: #33241a;
    --good: #6fd6b0; --good-paper: #17302a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 50rem; padding: 2.5rem 1.25rem 5rem;
  background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, serif;
}
h1, h2, table, figcaption, summary, footer, .kicker {
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { margin: 0 0 1rem; font-size: 2rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 3rem 0 .75rem; font-size: 1.25rem; }
p { overflow-wrap: anywhere; }
.kicker { margin: 0; color: var(--soft); font-size: .875rem; letter-spacing: .04em; }
.privacy {
  margin: 1.5rem 0; padding: .9rem 1.1rem; border-left: .3rem solid var(--warn);
  background: var(--warn-paper); border-radius: .25rem;
}
.privacy strong { color: var(--warn); }
.privacy.kept { border-color: var(--good); background: var(--good-paper); }
.privacy.kept strong { color: var(--good); }
.warning strong { color: var(--warn); }
.verdict { margin: 1rem 0; padding: .6rem 1.1rem; border-left: .3rem solid var(--line); }
.verdict.doubtful { border-color: var(--warn); background: var(--warn-paper); }
.verdict.doubtful strong { color: var(--warn); }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .9rem; line-height: 1.4; }
th, td { padding: .4rem .75rem .4rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 500; overflow-wrap: break-word; min-width: 8rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.clear th, tr.clear td:nth-child(2) { color: var(--accent); font-weight: 600; }
small { color: var(--soft); }
figure { margin: 1.5rem 0; }
figure img { display: block; width: 100%; height: auto; padding: .75rem; background: #fff;
  border: 1px solid var(--line); border-radius: .5rem; }
figure.narrow img { max-width: 32rem; }
figcaption { margin-top: .5rem; color: var(--soft); font-size: .875rem; }
pre { overflow-x: auto; padding: 1rem; background: var(--card); border-radius: .5rem;
  font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
summary { cursor: pointer; color: var(--accent); }
footer { margin-top: 4rem; color: var(--soft); font-size: .8125rem; }
@media (max-width: 34rem) {
  body { padding: 1.5rem .9rem 3rem; font-size: 1rem; }
  h1 { font-size: 1.6rem; }
  table { font-size: .78rem; }
  th, td { padding-right: .4rem; }
  th:last-child, td:last-child { padding-right: 0; }
  tbody th { min-width: 4rem; overflow-wrap: anywhere; }
  .minor { display: none; }
  .number { white-space: normal; }
  figure img { padding: .25rem; }
}
@media print { body { max-width: none; } details > * { display: block; } }
"""
