//! Style sheets. Everything a page needs is in the page: no script, no font, no picture from elsewhere.

/// Colours and shapes of timelines.
pub(super) const STYLE_OF_PICTURES: &str = "
.remora{--ink:#1c2128;--dim:#59636e;--line:#c3cad3;--paper:#fff;--runs:#9aa7b8;--proxied:#2a8a5f;\
--d1:#c5d5f0;--d2:#5b82c4;--b1:#fbd5d3;--b2:#c92a2a;--e1:#f7e3b0;--e2:#a86d00;--hook:#8250df;\
font:12px ui-sans-serif,system-ui,sans-serif}
@media(prefers-color-scheme:dark){.remora{--ink:#e6edf3;--dim:#9aa4af;--line:#3d444d;--paper:#0f141a;--runs:#65717f;\
--proxied:#37a774;--d1:#22365c;--d2:#7ba1e0;--b1:#4d1d1f;--b2:#f26d6d;--e1:#453410;--e2:#dfae4f;--hook:#ab7df8}}
.remora .paper{fill:var(--paper)}
.remora text{fill:var(--ink)}
.remora .title{font-size:14px;font-weight:600}
.remora .name{text-anchor:end}
.remora .kind,.remora .tick,.remora .event text,.remora .legend text{fill:var(--dim);font-size:11px}
.remora .tick{text-anchor:middle}
.remora .axis{stroke:var(--line);fill:none}
.remora .event path{stroke:var(--line);stroke-dasharray:2 3;fill:none}
.remora .seg.runs rect{fill:var(--runs)}
.remora .seg.proxied rect{fill:var(--proxied)}
.remora .seg.direct rect{fill:url(#p-direct);stroke:var(--d2)}
.remora .seg.broken rect{fill:url(#p-broken);stroke:var(--b2)}
.remora .seg.excluded rect{fill:url(#p-excluded);stroke:var(--e2)}
.remora .seg.ended path,.remora .seg.backoff path{stroke:var(--b2);stroke-width:2;stroke-dasharray:1 5;stroke-linecap:round;fill:none}
.remora .seg.waits path{stroke:var(--line);stroke-width:2;fill:none}
.remora .seg.hook rect{fill:var(--hook)}
.remora .seg.ready path{fill:var(--proxied)}
.remora .stops{opacity:.6}
.remora .seg.probe path{stroke:var(--dim);fill:none}
.remora .seg.fault path{stroke:var(--b2);stroke-width:2;fill:none}
.remora .end{font-weight:700}
.remora .well{fill:var(--proxied)}
.remora .badly{fill:var(--b2)}
.remora .b-ground{fill:var(--b1)}.remora .b-line{fill:var(--b2)}
.remora .e-ground{fill:var(--e1)}.remora .e-dot{fill:var(--e2)}
.remora .d-ground{fill:var(--d1)}.remora .d-line{fill:var(--d2)}
.remora .hint{fill:var(--dim);font-size:11px}
.remora .detail{visibility:hidden;pointer-events:none}
.remora:hover .hint,.remora:focus-within .hint{visibility:hidden}
.remora .seg:hover .detail,.remora .seg:focus .detail{visibility:visible}
.remora .seg:focus{outline:none}
.remora .seg:focus rect,.remora .seg:focus path{stroke:var(--ink);stroke-width:2.5}
.remora .seg:focus .end{text-decoration:underline}
";

/// Everything else on a page.
pub(super) const STYLE_OF_PAGES: &str = "
:root{color-scheme:light dark;--ink:#1c2128;--dim:#59636e;--line:#d5dbe1;--paper:#fff;--card:#f6f8fa;\
--error:#b42318;--warning:#8a5a00;--note:#0b63b0;--ok:#1f7a4d;--add:#dafbe1;--del:#ffe1de}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9aa4af;--line:#2d333b;--paper:#0f141a;--card:#161c24;\
--error:#ff8b85;--warning:#e3b341;--note:#79b8ff;--ok:#56c98d;--add:#12321f;--del:#421a1c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 ui-sans-serif,system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:22px;margin:0 0 4px}h2{font-size:18px;margin:0}h3{font-size:15px;margin:20px 0 8px}
p{margin:6px 0}code,pre{font:13px/1.45 ui-monospace,monospace}
.dim{color:var(--dim)}
section{border-top:1px solid var(--line);margin-top:28px;padding-top:20px}
.ok{color:var(--ok)}.error{color:var(--error)}.warning{color:var(--warning)}.note{color:var(--note)}
.chart{overflow-x:auto;margin:10px 0;border:1px solid var(--line);border-radius:8px;padding:8px}
.chart svg{display:block;width:100%;min-width:760px;height:auto}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid currentColor;border-radius:6px;\
margin:12px 0;padding:12px 16px}
article>*{color:var(--ink)}article>h4{margin:0 0 6px;font-size:15px;color:inherit}
article .place{color:var(--dim);overflow-wrap:anywhere}
pre{margin:8px 0;padding:8px 10px;background:var(--paper);border:1px solid var(--line);border-radius:6px;overflow-x:auto}
pre b{color:var(--error)}
dl{display:grid;grid-template-columns:5.5em 1fr;gap:4px 14px;margin:8px 0}
dt{color:var(--dim)}dd{margin:0}
ol{margin:4px 0;padding-left:22px}li{margin:4px 0}li span{display:block;color:var(--dim)}
.sides{display:grid;grid-template-columns:1fr 1fr;gap:10px}
.sides>div{min-width:0}.sides pre{margin-top:4px;padding:6px 0}
.sides i{display:block;font-style:normal;padding:0 10px;min-height:1.45em;white-space:pre;width:max-content;min-width:100%}
.sides .add{background:var(--add)}.sides .del{background:var(--del)}.sides .gap{color:var(--dim)}
table{border-collapse:collapse;width:100%;font-size:13px}td,th{text-align:left;padding:4px 10px 4px 0;vertical-align:top;\
border-bottom:1px solid var(--line)}
.scroll{overflow-x:auto}
summary{cursor:pointer;color:var(--dim);margin:10px 0}
a,summary{color:var(--note)}
:focus-visible{outline:2px solid var(--note);outline-offset:2px}
@media(max-width:720px){.sides{grid-template-columns:1fr}dl{grid-template-columns:1fr}dt{margin-top:6px}}
@media print{.chart,article{break-inside:avoid}}
";
