/* SPDX-License-Identifier: Apache-2.0 */
/* The style of the page at "/" and its hash, which the Content-Security-Policy uses to permit this
 * style only. test_page.py reports the hash of a changed style. */
#pragma once

#define STYLE_HASH "sha256-r3FKED3n6SclkZ5h7jIGMTYSzVMIApGTtj4EjycXRUQ="

/* Text has a contrast of at least 4.5 on its background, in both colour schemes (test_page.py). */
#define STYLE                                                                                      \
        ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--card:#f6f8fa;"      \
        "--edge:#d8dee4;--one:#0b5cc4;--two:#a34a05;--ok:#1a6f33;--warn:#8a5a00;--bad:#b91c28}\n"  \
        "@media(prefers-color-scheme:dark){:root{--bg:#0e1319;--fg:#e6edf3;--soft:#9aa7b4;"        \
        "--card:#161c24;--edge:#2d3742;--one:#6cb0ff;--two:#f0a85a;--ok:#56d364;--warn:#e3b341;"   \
        "--bad:#ff8a82}}\n"                                                                        \
        "*{box-sizing:border-box}\n"                                                               \
        "body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:78rem;padding:1rem;"     \
        "background:var(--bg);color:var(--fg);font-variant-numeric:tabular-nums;"                  \
        "overflow-wrap:anywhere}\n"                                                                \
        "a{color:var(--one)}\n"                                                                    \
        "h1{font-size:1.25rem;margin:0} h2{font-size:1.05rem;margin:1.6rem 0 .5rem}"               \
        " h3{font-size:.95rem;margin:0}\n"                                                         \
        "p{margin:.3rem 0} ul{list-style:none;margin:0;padding:0}\n"                               \
        "code{font:.9em ui-monospace,monospace;background:var(--edge);padding:0 .25em;"            \
        "border-radius:3px}\n"                                                                     \
        ".defs{position:absolute} small,.note,.soft{color:var(--soft);font-size:.85rem}\n"         \
        "header,figcaption,.head{display:flex;flex-wrap:wrap;gap:0 .8rem;align-items:baseline;"    \
        "justify-content:space-between}\n"                                                         \
        ".health{border-left:5px solid;padding:.6rem 1rem;margin:.8rem 0;"                         \
        "background:var(--card);border-radius:4px}\n"                                              \
        ".health h2{margin:0;font-size:1.15rem} .health li{margin-top:.6rem;color:var(--fg)}\n"    \
        ".health li b{display:block} .health b::first-letter,h2 span::first-letter,"               \
        "details h3::first-letter{text-transform:uppercase} h2 span{display:inline-block}\n"       \
        ".ok{border-color:var(--ok)} .ok h2,b.ok{color:var(--ok)}\n"                               \
        ".warn{border-color:var(--warn)} .warn h2,b.warn{color:var(--warn)}\n"                     \
        ".bad{border-color:var(--bad)} .bad h2,b.bad{color:var(--bad)}\n"                          \
        ".grid{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fit,"                      \
        "minmax(min(100%,21rem),1fr))}\n"                                                          \
        ".tiles{display:grid;gap:.8rem;margin:.8rem 0 0;grid-template-columns:repeat(auto-fit,"    \
        "minmax(9.5rem,1fr))}\n"                                                                   \
        ".tiles div,figure,.card{background:var(--card);border:1px solid var(--edge);"             \
        "border-radius:6px;padding:.6rem .8rem;margin:0;min-width:0}\n"                            \
        "dt{color:var(--soft);font-size:.85rem} dd{margin:0;font-size:1.35rem}"                    \
        " dd small{display:block;font-size:.85rem}\n"                                              \
        ".parts{display:flex;flex-wrap:wrap;gap:0 .8rem;font-size:.85rem} "                        \
        ".legend{width:100%;min-height:2.9em;font-size:.9rem}\n"                                   \
        ".legend svg,.parts svg{width:24px;height:8px;vertical-align:middle}"                      \
        " .parts svg{width:12px;height:12px}\n"                                                    \
        ".plot{display:block;width:100%;height:auto;margin-top:.3rem}\n"                           \
        ".plot text{font-size:11px;fill:var(--soft)} .y{text-anchor:end} .x{text-anchor:middle}\n" \
        "path{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}\n"            \
        ".axis{stroke:var(--edge);stroke-width:1}\n"                                               \
        ".line1{stroke:var(--one)} .line2{stroke:var(--two);stroke-dasharray:5 3}\n"               \
        ".area{fill:var(--one);opacity:.13}\n"                                                     \
        ".bar{display:block;width:100%;height:16px;margin:.4rem 0;border-radius:3px}\n"            \
        ".track{fill:var(--edge)} .live{fill:var(--one)}"                                          \
        " .reserved{fill:var(--one);opacity:.3}\n"                                                 \
        ".hatch{stroke:var(--one);stroke-width:1.5}\n"                                             \
        ".wide{overflow-x:auto} table{border-collapse:collapse}\n"                                 \
        ".list{width:100%}\n"                                                                      \
        "th,td{text-align:left;vertical-align:top;padding:.25rem .9rem .25rem 0}\n"                \
        "th{font-weight:normal;color:var(--soft)} .list tr+tr>*{border-top:1px solid "             \
        "var(--edge)}\n"                                                                           \
        ".list th[scope=row]{color:var(--fg);min-width:8rem}"                                      \
        " .num{text-align:right;white-space:nowrap}\n"                                             \
        ".list .num:last-child{padding-right:0}\n"                                                 \
        "nav{margin-top:1.6rem} nav a{margin-right:1rem;display:inline-block}\n"                   \
        "details{margin-top:1rem} summary{cursor:pointer}\n"                                       \
        ".all{columns:24rem;column-gap:2rem;font-size:.87rem} .all h3{break-after:avoid}\n"        \
        ".all section{padding-top:.8rem} .all th{min-width:7rem} .all p{margin:0 0 .4rem}\n"       \
        "@media(max-width:40rem){body{padding:.7rem} .extra{display:none} .list{font-size:.87rem}" \
        " th,td{padding-right:.6rem} .list th[scope=row]{min-width:5rem}}\n"
