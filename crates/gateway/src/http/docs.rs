//! `/docs` and `/openapi.json`: made once, when they are first read; whole in themselves, without scripts.

use super::openapi::{Field, Operation, reason, refusals};
use axum::body::Bytes;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::fmt::Write;

const STYLE: &str = include_str!("docs.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
const CACHED: &str = "public, max-age=60";

pub(super) async fn serve_json(description: Bytes) -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, CACHED)], description).into_response()
}

pub(super) async fn serve_page(page: Bytes) -> Response {
    let headers =
        [(CONTENT_TYPE, "text/html; charset=utf-8"), (CACHE_CONTROL, CACHED), (CONTENT_SECURITY_POLICY, POLICY)];
    (headers, page).into_response()
}

/// The page about these operations. Nothing in it comes from a caller.
pub(super) fn page(operations: &[&[Operation]]) -> Bytes {
    let mut groups: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().copied().flatten() {
        groups.entry(operation.group).or_default().push(operation);
    }
    let version = env!("CARGO_PKG_VERSION");
    let links: String = groups.keys().map(|group| format!("<a href=\"#{group}\">{group}</a>")).collect();
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Holdfast API</title>\
         <style>{STYLE}</style></head><body><header><h1>Holdfast <small>{version}</small></h1>\
         <p>Holds credits before work is done, charges exactly what the work cost, settles each charge once.</p>\
         <nav>{links}<a href=\"/openapi.json\">openapi.json</a></nav></header><main>{INTRODUCTION}"
    );
    for (group, operations) in groups {
        page.push_str(&format!("<h2 id=\"{group}\">{group}</h2>"));
        for operation in operations {
            page.push_str(&section(operation));
        }
    }
    page.push_str("</main></body></html>");
    Bytes::from(page)
}

const INTRODUCTION: &str = "<section class=\"intro\"><p>Send <code>Authorization: Bearer …</code> with a token from \
    <code>holdfast token --role service</code> (or <code>admin</code>); it lives for five minutes at the most. Bodies are \
    JSON; amounts are decimal strings such as <code>\"12.5\"</code>; unknown and doubled fields are refused. A request that \
    is sent again with the same <code>Idempotency-Key</code> or <code>request_id</code> is done once, for ever: the answer is \
    the same, with the header <code>idempotent-replayed: true</code>. Refusals are \
    <code>{\"error\":{\"code\",\"message\",\"details\",\"request_id\"}}</code>.</p></section>";

fn section(operation: &Operation) -> String {
    let Operation { method, path, summary, access, status, .. } = operation;
    let class = method.to_lowercase();
    let badge = access.name().map(|name| format!("<span class=\"access\">{name}</span>")).unwrap_or_default();
    let mut text = format!(
        "<details><summary><b class=\"{class}\">{method}</b> <code>{path}</code> <span>{summary}</span>{badge}</summary>"
    );
    text.push_str(&table("Parameters", operation.parameters));
    text.push_str(&table("Body", operation.body));
    text.push_str(&table(&format!("Answer {status}"), operation.answer));
    let refused = refusals(operation).into_iter().map(|status| format!("<li><b>{status}</b> {}</li>", reason(status)));
    let _written = write!(text, "<h4>Refusals</h4><ul>{}</ul></details>", refused.collect::<String>());
    text
}

fn table(title: &str, fields: &[Field]) -> String {
    if fields.is_empty() {
        return String::new();
    }
    let row = |Field { name, kind, place, about }: &Field| {
        let place = match place {
            super::openapi::Place::Required => "required",
            super::openapi::Place::Optional => "optional",
            super::openapi::Place::InPath => "path",
            super::openapi::Place::InQuery => "query",
            super::openapi::Place::InHeader => "header",
        };
        format!("<tr><td><code>{name}</code></td><td>{}</td><td>{place}</td><td>{about}</td></tr>", kind.name())
    };
    let rows: String = fields.iter().map(row).collect();
    format!("<h4>{title}</h4><div class=\"wide\"><table>{rows}</table></div>")
}
