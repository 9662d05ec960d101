//! The page's style sheet. Colours are those of Okabe and Ito ("Color Universal Design", 2008), darkened on white and
//! lightened on black until text in them has a contrast of 4.5 to 1; no meaning is carried by colour alone.

/// Colours: 0 alone, 1 unprotected, 2 and 4 to 7 what protects, 3 the CPU-time quota.
pub(crate) const COLOURS: usize = 8;

pub(crate) const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1c1f; --faint: #5d5f66; --rule: #d7d8dd; --soft: #f4f4f6; --page: #ffffff;
  --good: #006b45; --bad: #a8300a;
  --c0: #595b61; --c1: #b3400a; --c2: #005fa3; --c3: #7d5500; --c4: #00704f; --c5: #8e3a86; --c6: #0b6d84; --c7: #33353b; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e8e8ec; --faint: #a3a5ad; --rule: #3b3d44; --soft: #212227;
  --page: #16171a; --good: #45d29f; --bad: #ff8f66;
  --c0: #b7b9c0; --c1: #ff8f5e; --c2: #6ab7fa; --c3: #e6b94d; --c4: #45d29f; --c5: #e495da; --c6: #5bd6ea; --c7: #d6d7dc; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif; color: var(--ink); background: var(--page); max-width: 50rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p { margin: .5rem 0; max-width: 44rem; } ul, ol { padding-left: 1.25rem; margin: .5rem 0; } li { margin: .2rem 0; }
.faint, caption { color: var(--faint); font-size: .875rem; } .good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
.verdict { border-left: 4px solid var(--c2); padding: .25rem 0 .25rem 1rem; margin: 1.25rem 0; }
.verdict p { margin: .4rem 0; } .verdict p:first-child { font-size: 1.15rem; line-height: 1.45; font-weight: 600; }
nav { font-size: .875rem; line-height: 1.9; margin: 1rem 0 0; } nav a { margin-right: .9rem; white-space: nowrap; }
a { color: var(--c2); } a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--c2); outline-offset: 2px; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; font-size: .875rem; }
caption { text-align: left; padding-bottom: .25rem; white-space: normal; }
td .faint, th .faint { font-size: inherit; }
caption span { display: block; max-width: min(44rem, calc(100vw - 2rem)); }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--rule); vertical-align: baseline; }
th { font-weight: 600; } tbody th { font-weight: 400; } thead th { color: var(--faint); font-size: .8125rem; vertical-align: bottom; }
tr > :first-child, .left { text-align: left; } tr > :first-child { position: sticky; left: 0; background: var(--page); }
tr > :last-child { padding-right: 0; } .prose td { white-space: normal; text-align: left; vertical-align: top; } .prose th { vertical-align: top; }
pre { overflow-x: auto; padding: .75rem; background: var(--soft); border-radius: .375rem; font-size: .8125rem; line-height: 1.45; }
code { font-size: .875em; } summary { cursor: pointer; padding: .25rem 0; }
figure { margin: 1rem 0 1.5rem; } figcaption p { margin: .25rem 0; } figcaption { margin-bottom: .75rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; } svg.narrow { display: none; max-width: 30rem; }
svg text { fill: var(--faint); font-size: 12px; font-family: inherit; } svg .strong { fill: var(--ink); font-weight: 600; }
svg .value { fill: var(--ink); font-size: 11px; } svg .small { font-size: 11px; }
svg .halo { paint-order: stroke; stroke: var(--page); stroke-width: 3px; stroke-linejoin: round; }
svg .grid { stroke: var(--rule); stroke-width: 1; fill: none; } svg .base { stroke: var(--faint); stroke-width: 1; fill: none; }
svg .one { stroke: var(--faint); stroke-width: 1; stroke-dasharray: 2 3; fill: none; }
svg .line { fill: none; stroke: var(--c); stroke-width: 1.75; stroke-linejoin: round; } svg .thin { stroke-width: 1.1; }
svg .o1 { stroke-opacity: .8; } svg .o2 { stroke-opacity: .6; } svg .o3 { stroke-opacity: .45; }
svg .dash { stroke-dasharray: 5 3; } svg .dots { stroke-dasharray: 1.5 3; } svg .lead { fill: none; stroke: var(--rule); stroke-width: 1; }
svg .whisker { fill: none; stroke: var(--c, var(--ink)); stroke-width: 1.25; } svg .mark { fill: var(--c); stroke: var(--page); stroke-width: 1; }
svg .hollow { fill: var(--page); stroke: var(--c); stroke-width: 1.75; } svg .fill { fill: var(--c); } svg .pale { fill: var(--c); fill-opacity: .4; }
svg .band { fill: var(--c); fill-opacity: .28; } svg .name { fill: var(--c); }
svg .inside { fill: var(--page); font-size: 11px; font-weight: 600; }
@media screen and (max-width: 640px) { svg.wide { display: none; } svg.narrow { display: block; }
  body { padding-top: 1rem; } h1 { font-size: 1.35rem; } .verdict p:first-child { font-size: 1.05rem; } table { font-size: .8125rem; } }
@media print { body { max-width: none; font-size: 10.5pt; padding: 0; } nav { display: none; } .scroll, pre { overflow: visible; }
  pre { white-space: pre-wrap; } h2, h3, caption { break-after: avoid; } figure, tr, .verdict { break-inside: avoid; }
  table { font-size: 8pt; } th, td { padding-right: .5rem; } thead th { white-space: normal; } svg.wide { max-width: 150mm; }
  h2 { margin-top: 1.25rem; } figure { margin-bottom: .5rem; } tr > :first-child { position: static; } thead { display: table-header-group; }
  details.print::details-content { content-visibility: visible; display: block; } a { color: inherit; text-decoration: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } @page { margin: 16mm; } }
";
