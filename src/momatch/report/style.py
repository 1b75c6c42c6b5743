"""The look of the page, in light and in dark."""

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1c2330; --soft: #5b6675; --line: #dfe3e8; --paper: #ffffff; --card: #f6f7f9;
  --s0: #0072b2; --s1: #c74f00; --s2: #00845f; --s3: #a8508a;
  --right: 0 114 178; --wrong: 199 79 0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e9ee; --soft: #9ba6b4; --line: #333b47; --paper: #14181f; --card: #1c222b;
    --s0: #5ab4ea; --s1: #ff9a5c; --s2: #35c79a; --s3: #e59bc8;
    --right: 30 120 190; --wrong: 205 90 20;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-variant-numeric: tabular-nums;
}
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .75rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .75rem; padding-top: .9rem; border-top: 1px solid var(--line); }
p { margin: 0 0 .75rem; max-width: 46rem; overflow-wrap: anywhere; }
.missing { color: var(--soft); font-style: italic; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .3rem 1.1rem .3rem 0; vertical-align: top; }
thead th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line); }
tbody th { font-weight: 500; overflow-wrap: break-word; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
td { white-space: nowrap; }
td:last-child { color: var(--soft); white-space: normal; }
code { font: .88em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
summary { cursor: pointer; margin: .75rem 0; color: var(--s0); }
.bar { display: inline-block; width: 14rem; max-width: 40vw; height: .6rem; margin-right: .5rem;
  background: var(--line); border-radius: .3rem; overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--s0); }
.matrix { font-size: .85rem; }
.matrix th, .matrix td { padding: .35rem .5rem; text-align: center; border: 1px solid var(--paper); }
.matrix thead th { vertical-align: bottom; }
.matrix tbody th { text-align: right; white-space: nowrap; }
.matrix tbody td { min-width: 2.6rem; background: var(--card); color: var(--ink); }
.matrix td.right { background: rgb(var(--right) / var(--shade)); }
.matrix td.wrong { background: rgb(var(--wrong) / var(--shade)); }
.matrix td.deep { color: #fff; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1.25rem; }
figure { margin: 0; max-width: 30rem; }
figcaption { color: var(--soft); font-size: .9rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--soft); }
svg .grid { stroke: var(--line); }
svg .ideal { stroke: var(--ink); stroke-dasharray: 4 4; }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
polyline.s0 { stroke: var(--s0); }
polyline.s1 { stroke: var(--s1); stroke-dasharray: 6 3; }
polyline.s2 { stroke: var(--s2); stroke-dasharray: 2 2.5; }
polyline.s3 { stroke: var(--s3); stroke-dasharray: 9 3 2 3; }
circle.s0, rect.s0 { fill: var(--s0); } circle.s1 { fill: var(--s1); }
circle.s2 { fill: var(--s2); } circle.s3 { fill: var(--s3); }
.keys { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .85rem; color: var(--soft); }
.key::before { content: ""; display: inline-block; width: .65rem; height: .65rem; border-radius: 50%; margin-right: .4rem; }
.key.s0::before { background: var(--s0); } .key.s1::before { background: var(--s1); }
.key.s2::before { background: var(--s2); } .key.s3::before { background: var(--s3); }
.dots { fill: none; stroke-width: 4; stroke-opacity: .6; }
.halo { fill: none; stroke: var(--ink); stroke-width: 6; }
.cross { fill: none; stroke-width: 3; }
svg text.name { font-size: 14px; font-weight: 600; fill: var(--ink); }
svg text.name { stroke: var(--paper); stroke-width: 4; paint-order: stroke; }
@media print { details > * { display: block; } }
"""
