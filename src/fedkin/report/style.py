"""How the report looks: its style sheet."""

STYLE = """
:root{--ink:#1f2933;--soft:#5b6673;--line:#e3e7ec;--back:#f4f6f8;--accent:#0b5c8f;--bad:#a8380b;--badback:#fdeee6}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
Helvetica,Arial,sans-serif;-webkit-text-size-adjust:100%}
header,main,footer{max-width:1080px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
h1{font-size:1.75rem;line-height:1.2;margin:.1em 0 .45em;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:0 0 .2em}
.eyebrow{margin:0;color:var(--accent);font-weight:650;font-size:.82rem;letter-spacing:.08em;text-transform:uppercase}
.chips{display:flex;flex-wrap:wrap;gap:8px;list-style:none;padding:0;margin:0 0 20px}
.chips li{background:#fff;border:1px solid var(--line);border-radius:99px;padding:2px 12px;font-size:.86rem;
color:var(--soft)}
section{background:#fff;border:1px solid var(--line);border-radius:14px;padding:22px 24px;margin:0 0 18px}
section>p.about{margin:0 0 14px;color:var(--soft);font-size:.93rem;max-width:78ch}
.lead{font-size:1.3rem;line-height:1.4;font-weight:600;margin:0 0 .4em;letter-spacing:-.005em}
.finding{border-left:5px solid var(--accent)}
.finding p{margin:.25em 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:12px;margin-top:18px}
.tile{background:var(--back);border-radius:10px;padding:12px 16px}
.tile b{display:block;font-size:1.45rem;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:.85rem}
.caveats{margin:14px 0 0;padding:10px 14px 10px 30px;background:#fff8e6;border-radius:10px;font-size:.9rem}
.scroll{overflow:auto;max-height:560px;margin:0 -6px}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.wrap td{text-align:left;white-space:normal;overflow-wrap:anywhere}.wrap th{text-align:left}.wrap tbody th{width:30%}
thead th{position:sticky;top:0;background:#fff;color:var(--soft);font-weight:600;font-size:.8rem;vertical-align:bottom;
white-space:normal;line-height:1.25;box-shadow:inset 0 -2px 0 var(--line);border-bottom:0}
th[data-sort]{cursor:pointer}th[data-sort]:hover{color:var(--accent)}
tbody th{font-weight:500}th:has(.dot){white-space:nowrap}
tr.best th,tr.best td{font-weight:700;background:#f0f7fc}
tr.other th,tr.other td{color:var(--soft)}
td.top{font-weight:700}tr.head th,tr.head td:nth-child(5){font-weight:700}
.newcomers td:nth-child(5){border-left:1px solid var(--line)}.newcomers td:last-child{border-left:1px solid var(--line)}
.levels{margin-top:18px;table-layout:fixed;min-width:760px}.levels th:first-child{width:160px}
.levels th,.levels td{padding:7px 5px}.scroll:has(.levels,.newcomers){max-height:none}
.levels td{white-space:normal}.levels small{white-space:nowrap;font-weight:400}.levels td small{margin-left:.1em}
.levels tbody th:has(.dot){white-space:normal;overflow-wrap:anywhere}
td.worse{background:var(--badback);color:var(--bad);font-weight:600}
.rates td small{display:block;margin-left:0}th.text,td.text{text-align:left;white-space:normal;min-width:6em}
td small{color:inherit;opacity:.75;margin-left:.35em}
section>p.about b{color:var(--ink);display:block;font-size:1.02rem}
.joining{margin-top:14px}.joining th,.joining td{padding:7px 8px}.joining td small{display:block;margin-left:0}
.joining td:last-child,.joining th.words{text-align:left;white-space:normal;min-width:140px}
.joining tbody th,.joining td.handed{white-space:normal}
.verdict{display:inline-block;border-radius:12px;padding:1px 10px;font-size:.84rem;line-height:1.35;font-weight:600}
.verdict.good{background:#e3f4ec;color:#00664a}.verdict.bad{background:var(--badback);color:var(--bad)}
.verdict.unclear{background:var(--back);color:var(--soft);font-weight:500}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.55em}
.note{font-size:.86rem;color:var(--soft);margin:12px 0 0;max-width:85ch}
details{margin-top:14px}
summary{cursor:pointer;color:var(--accent);font-weight:600;font-size:.93rem}
details h3{font-size:.95rem;margin:16px 0 4px}
select{font:inherit;padding:6px 10px;border:1px solid #c5ccd4;border-radius:8px;background:#fff;max-width:100%}
.switch{display:inline-flex;margin:0 0 12px;border:1px solid #c5ccd4;border-radius:8px;overflow:hidden}
.switch button{font:inherit;font-size:.9rem;padding:5px 14px;border:0;background:#fff;color:var(--soft);cursor:pointer}
.switch button+button{border-left:1px solid #c5ccd4}
.switch button[aria-pressed=true]{background:var(--accent);color:#fff;font-weight:600}
.figure{width:100%}
.figure[data-square]{max-width:740px;margin:0 auto}
footer{color:var(--soft);font-size:.84rem;padding-bottom:40px}
[hidden]{display:none}
@media(max-width:600px){header,main,footer{padding-left:12px;padding-right:12px}section{padding:16px 14px}
.lead{font-size:1.1rem}h1{font-size:1.4rem}}
@media print{body{background:#fff}section{break-inside:avoid;border:0;padding:8px 0}.scroll{max-height:none}}
"""
