"""The operator's page and the OpenAPI document of the admin API. The page asks for the key and keeps it in memory alone."""

from html import escape
from typing import Any

import msgspec

from penstock.service.router.admin.desk import ROUTES, RuleBody


def document(version: str) -> dict[str, Any]:
    """OpenAPI 3.1, from the table of routes."""
    bodies = [route.body for route in ROUTES if route.body is not None and route.body is not RuleBody]
    _, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {
        "/replicas": {"get": _operation("Replicas and how they are"), "post": _operation("Add one: name and url")},
        "/replicas/{name}": {"delete": _operation("Remove one")},
        "/replicas/{name}/drain": {"post": _operation("Nothing new goes there")},
        "/replicas/{name}/undrain": {"post": _operation("It takes requests again")},
        "/replicas/{name}/role/{role}": {
            "post": _operation("Use it for prefill, decode or both, once what it is doing has ended")
        },
    }
    for route in ROUTES:
        operation = _operation(route.help)
        if route.body is not None:
            free = {"type": "object", "description": (RuleBody.__doc__ or "").strip()}
            schema = free if route.body is RuleBody else {"$ref": f"#/components/schemas/{route.body.__name__}"}
            operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for path, operations in paths.items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        for operation in operations.values():
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
    security = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock admin", "version": version or "0"},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": security},
        "security": [{"key": []}],
    }


def _operation(words: str) -> dict[str, Any]:
    return {"summary": words, "responses": {"200": {"description": "done"}, "400": {"description": "what is wrong"}}}


def docs_page(version: str) -> bytes:
    """The document for people: every route, what it does and takes. No secret: what it names asks for the key."""
    described = document(version)
    rows = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            named = described["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
            fields = ", ".join(named.get("properties", ())) or named.get("description", "")
            cells = (f"{method.upper()} {path}", operation["summary"], fields)
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "<!doctype html><html lang='en'><meta charset='utf-8'><title>Penstock admin: routes</title>"
    style = "<style>:root{color-scheme:light dark}body{font:16px system-ui;margin:2rem}td{padding:.3rem 1rem .3rem 0}</style>"
    words = "<p>Send <code>Authorization: Bearer $PENSTOCK_ADMIN_KEY</code>. <a href='/'>The page</a>; the same for machines: "
    end = "<code>GET /openapi.json</code>.</p><table><tr><th>route<th>what it does<th>takes</tr>"
    return f"{head}{style}<h1>Admin API</h1>{words}{end}{''.join(rows)}</table></html>".encode()


PAGE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Penstock admin</title>
<meta name="viewport" content="width=device-width">
<style>
*{box-sizing:border-box}:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1d2733;background:#fff}
table{border-collapse:collapse;display:block;max-width:100%;overflow:auto;margin:.5rem 0 1rem}
td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #dde3ea}
input,select,button,textarea{font:inherit;padding:.3rem .5rem;margin:.15rem;max-width:100%}
pre{background:#f3f6f9;padding:.6rem;overflow:auto}
.bad{color:#a4121f}.good{color:#0b6b3a}@media(prefers-color-scheme:dark){body{background:#12171d;color:#dbe3ec}pre{background:#1b232c}
.bad{color:#ff8a8f}.good{color:#6fd69b}}
</style>
<h1>Penstock admin</h1>
<form id="door"><label>Admin key <input type="password" id="key" autocomplete="off" required></label> <button>Open</button>
<a href="/docs">all routes</a></form><p id="said" role="status"></p><main id="all" hidden>
<h2>Keys</h2><table id="keys"></table>
<form id="make"><input name="tenant" placeholder="tenant" required><input name="name" placeholder="what for">
<select name="scopes"><option>inference</option><option>usage</option><option>metrics</option></select>
<input name="budget_usd" placeholder="budget, dollars" inputmode="decimal"> <button>Make a key</button></form>
<h2>Budgets</h2><table id="budgets"></table>
<form id="budget"><input name="scope" placeholder="tenant:acme" required>
<input name="amount_usd" placeholder="dollars" required>
<select name="period"><option>total</option><option>day</option><option>month</option></select> <button>Set</button></form>
<h2>Rules</h2><pre id="rules"></pre>
<form id="rule"><select name="kind">
<option>prices</option><option>tenants</option><option>tiers</option><option>models</option></select>
<input name="name" placeholder="name" required>
<textarea name="value" rows="2" cols="50">{"input": 0.1, "output": 0.4}</textarea>
<button>Set</button> <button name="drop" type="button">Delete</button></form>
<h2>Replicas</h2><table id="replicas"></table>
<h2>Usage</h2><table id="usage"></table><h2>Audit</h2><table id="audit"></table></main>
<script>
const $=id=>document.getElementById(id);let key="";
async function ask(method,path,body){const r=await fetch(path,{method,headers:{authorization:"Bearer "+key},
 body:body===undefined?undefined:JSON.stringify(body)});const v=await r.json();
 if(!r.ok)throw new Error(v.error?v.error.message:r.status);return v}
function say(text,good){$("said").textContent=text;$("said").className=good?"good":"bad"}
function shown(name,v){if(name==="at"||name.endsWith("_at"))return v?new Date(v*1000).toLocaleString():"";
 return v!==null&&typeof v==="object"?JSON.stringify(v):v}
function table(id,rows,act){const t=$(id);t.replaceChildren();if(!rows.length)return;const names=Object.keys(rows[0]);
 const head=t.insertRow();for(const n of names){const c=document.createElement("th");c.textContent=n;head.append(c)}
 for(const row of rows){const r=t.insertRow();for(const n of names)r.insertCell().textContent=
  shown(n,row[n]);
  if(act){const b=document.createElement("button");b.textContent=act[0];b.onclick=()=>run(()=>act[1](row));
   r.insertCell().append(b)}}}
async function draw(){table("keys",await ask("GET","/keys"),["revoke",k=>ask("DELETE","/keys/"+k.id)]);
 table("budgets",await ask("GET","/budgets"),["delete",b=>ask("DELETE","/budgets/"+encodeURIComponent(b.scope))]);
 $("rules").textContent=JSON.stringify(await ask("GET","/rules"),null,1);
 table("replicas",(await ask("GET","/replicas")).replicas.map(r=>({
  name:r.name,state:r.state,role:r.role||"",draining:r.is_draining,pending:r.num_pending,
  served:r.num_served,failed:r.num_failed})),["drain",r=>ask("POST","/replicas/"+r.name+(r.draining?"/undrain":"/drain"))]);
 table("usage",await ask("GET","/usage"));table("audit",await ask("GET","/audit"))}
async function run(work){try{const v=await work();await draw();say(v&&v.key?"The key, shown this once: "+v.key:"Done",true)}
 catch(e){say(e.message,false)}}
const fields=f=>Object.fromEntries([...new FormData(f)].filter(([,v])=>v!==""));
$("door").onsubmit=e=>{e.preventDefault();key=$("key").value;run(async()=>{await ask("GET","/keys");$("all").hidden=false})};
$("make").onsubmit=e=>{e.preventDefault();const f=fields(e.target);f.scopes=[f.scopes];
 if(f.budget_usd)f.budget_usd=+f.budget_usd;
 run(()=>ask("POST","/keys",f))};
$("budget").onsubmit=e=>{e.preventDefault();const f=fields(e.target);
 run(()=>ask("PUT","/budgets/"+encodeURIComponent(f.scope),{amount_usd:+f.amount_usd,period:f.period}))};
const where=f=>"/rules/"+f.kind+"/"+encodeURIComponent(f.name);
$("rule").onsubmit=e=>{e.preventDefault();const f=fields(e.target);run(()=>ask("PUT",where(f),JSON.parse(f.value)))};
$("rule").drop.onclick=()=>run(()=>ask("DELETE",where(fields($("rule")))));
</script></html>
"""
