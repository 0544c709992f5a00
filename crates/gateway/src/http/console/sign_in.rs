//! Logging in with an admin token or key, and out again.

use super::session::{COOKIE_NAME, SESSION_MAX, cookie};
use super::{STYLE, html, page};
use crate::http::AppState;
use crate::http::auth::admin_of;
use crate::http::error::ApiError;
use crate::http::read::read;
use crate::identity::AuthError;
use crate::wire::error::Problem;
use axum::Form;
use axum::body::Body;
use axum::extract::{FromRequest, Request, State};
use axum::http::header::{HOST, LOCATION, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use html::Plain;
use serde::Deserialize;
use std::time::Instant;

/// The longest form: a token has some hundred bytes.
pub(super) const FORM_BYTES_MAX: usize = 16 * 1_024;

#[derive(Deserialize)]
struct LoginBody {
    token: String,
}

pub(in crate::http) async fn login_form() -> Response {
    page(form(None))
}

/// Begins a session for whoever has an admin token or key.
pub(in crate::http) async fn login(State(state): State<AppState>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    from_our_page(&parts.headers)?;
    let bytes = read(body, FORM_BYTES_MAX).await?;
    let form_request = Request::from_parts(parts.clone(), Body::from(bytes));
    let Ok(Form(LoginBody { token })) = Form::<LoginBody>::from_request(form_request, &()).await else {
        return Ok(refused(StatusCode::BAD_REQUEST, "The form did not arrive whole."));
    };
    match admin_of(token.trim(), &parts, &state).await {
        Ok(admin) => {
            let begun = state.console.sessions.begin(admin, Instant::now());
            let value = begun.map_err(|error| Problem::NoRandomness(error.to_string()))?;
            let secure = if came_by_tls(&parts.headers) { "; Secure" } else { "" };
            let seconds = SESSION_MAX.as_secs();
            let cookie =
                format!("{COOKIE_NAME}={value}; Path=/console; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
            Ok((StatusCode::SEE_OTHER, [(LOCATION, "/console".to_owned()), (SET_COOKIE, cookie)]).into_response())
        }
        Err(limited @ ApiError::RateLimited(_)) => Err(limited),
        Err(error) => Ok(refused(error.status(), &sentence(&error))),
    }
}

/// Ends the session.
pub(in crate::http) async fn logout(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, ApiError> {
    from_our_page(&headers)?;
    if let Some(cookie) = cookie(&headers) {
        state.console.sessions.end(cookie);
    }
    let forget = format!("{COOKIE_NAME}=; Path=/console; Max-Age=0; HttpOnly; SameSite=Strict");
    Ok((StatusCode::SEE_OTHER, [(LOCATION, "/console/login".to_owned()), (SET_COOKIE, forget)]).into_response())
}

/// Refuses a form that another site's page has sent. Programs that are no browsers say neither header, and have no cookies
/// that somebody else could make them send.
pub(super) fn from_our_page(headers: &HeaderMap) -> Result<(), AuthError> {
    let text = |value: Option<&axum::http::HeaderValue>| value.and_then(|value| value.to_str().ok()).map(str::to_owned);
    if let Some(site) = headers.get("sec-fetch-site") {
        return if site == "same-origin" || site == "none" { Ok(()) } else { Err(AuthError::CrossSite) };
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let from = text(Some(origin)).and_then(|origin| Some(origin.split_once("://")?.1.to_owned()));
    let to = text(headers.get(HOST));
    if from.is_some() && from == to { Ok(()) } else { Err(AuthError::CrossSite) }
}

/// Whether the browser spoke TLS, to a proxy before us.
fn came_by_tls(headers: &HeaderMap) -> bool {
    headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"))
}

fn sentence(error: &ApiError) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn refused(status: StatusCode, why: &str) -> Response {
    let mut response = page(form(Some(why)));
    *response.status_mut() = status;
    response
}

fn form(refused: Option<&str>) -> String {
    let notice = refused.map(|why| format!("<p class=\"notice\" role=\"alert\">{}</p>", Plain(why)));
    let notice = notice.unwrap_or_default();
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Log in · Holdfast</title>\
         <style>{STYLE}</style></head><body class=\"narrow\"><main><h1>Holdfast</h1>{notice}\
         <form method=\"post\" action=\"/console/login\"><label for=\"token\">Admin key or token</label>\
         <input id=\"token\" name=\"token\" type=\"password\" required autofocus autocomplete=\"off\" \
         aria-describedby=\"hint\"><p id=\"hint\">Paste the admin key that the first start printed, or what \
         <code>holdfast token --role admin</code> prints on the server. A token is good for five minutes; the session for \
         eight hours.</p>\
         <button>Log in</button></form></main></body></html>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)]) -> bool {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        from_our_page(&pairs.collect()).is_ok()
    }

    #[test]
    fn only_our_own_pages_may_send_forms() {
        let host = ("host", "pay.example:8080");
        assert!(check(&[host]));
        assert!(check(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(check(&[host, ("origin", "https://pay.example:8080")]));
        assert!(!check(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!check(&[host, ("sec-fetch-site", "same-site")]));
        assert!(!check(&[host, ("sec-fetch-site", "cross-site"), ("origin", "https://pay.example:8080")]));
        assert!(!check(&[host, ("origin", "https://evil.example")]));
        assert!(!check(&[host, ("origin", "https://pay.example")]));
        assert!(!check(&[host, ("origin", "null")]));
        assert!(!check(&[("origin", "https://pay.example")]));
    }
}
