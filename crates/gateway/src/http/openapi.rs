//! The description of the API: a table of operations, from which `/openapi.json` and `/docs` are both made.
//!
//! It is kept by hand because the wire's types are stricter than what can be derived from them (amounts are decimal strings,
//! fields exclude each other). A test asks the real server for every operation in it.

use super::error::Shape;
use super::settings::BODY_BYTES_MAX;
use axum::body::Bytes;
use serde_json::{Map, Value, json};

/// One operation.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) group: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) access: Access,
    /// Parameters of the path, the query and the headers.
    pub(crate) parameters: &'static [Field],
    /// The fields of the body; none if it takes no body.
    pub(crate) body: &'static [Field],
    /// The status of success.
    pub(crate) status: u16,
    pub(crate) answer: &'static [Field],
    /// The statuses of refusals besides those that every operation can have; and 204, where there may be nothing to answer.
    pub(crate) refusals: &'static [u16],
}

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Anybody,
    Service,
    Admin,
    ApiKey,
}

impl Access {
    pub(crate) const fn name(self) -> Option<&'static str> {
        match self {
            Self::Anybody => None,
            Self::Service => Some("service token"),
            Self::Admin => Some("admin token or key"),
            Self::ApiKey => Some("API key"),
        }
    }

    const fn scheme(self) -> Option<&'static str> {
        match self {
            Self::Anybody => None,
            Self::Service => Some("service"),
            Self::Admin => Some("admin"),
            Self::ApiKey => Some("apiKey"),
        }
    }
}

/// A field of a body or an answer, or a parameter.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    pub(crate) about: &'static str,
}

/// Where a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Required,
    Optional,
    InPath,
    InQuery,
    InHeader,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// Credits as a decimal string.
    Amount,
    Count,
    Flag,
    Moment,
    Object,
    Objects,
    Texts,
    /// Whatever the model's API says.
    Any,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Amount => "amount",
            Self::Count => "whole number",
            Self::Flag => "true or false",
            Self::Moment => "moment",
            Self::Object => "object",
            Self::Objects => "list of objects",
            Self::Texts => "list of texts",
            Self::Any => "as the API has it",
        }
    }

    fn schema(self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Amount => json!({
                "type": "string", "pattern": "^(0|[1-9][0-9]*)(\\.[0-9]{0,5}[1-9])?$", "example": "12.5",
                "description": "credits, exact, with up to six decimal places",
            }),
            Self::Count => json!({ "type": "integer", "minimum": 0 }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::Moment => json!({ "type": "string", "format": "date-time" }),
            Self::Object => json!({ "type": "object" }),
            Self::Objects => json!({ "type": "array", "items": { "type": "object" } }),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::Any => json!({}),
        }
    }
}

/// The OpenAPI description of these operations.
pub(super) fn describe(operations: &[&[Operation]]) -> Bytes {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations.iter().copied().flatten() {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        if let Value::Object(methods) = path {
            methods.insert(operation.method.to_lowercase(), one(operation));
        }
    }
    let whole = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": format!(
                "Holds credits before work is done, charges exactly what the work cost, settles each charge once. \
                 Amounts are decimal strings. Bodies are JSON of at most {BODY_BYTES_MAX} bytes unless said otherwise; \
                 unknown and doubled fields are refused."
            ),
        },
        "paths": paths,
        "components": { "schemas": {
            "Error": error_schema(), "OpenAiError": open_ai_error_schema(), "AnthropicError": anthropic_error_schema(),
        }, "securitySchemes": {
            "service": bearer("a token with the role `service`: `holdfast token --role service`"),
            "admin": bearer("an admin key, or a token with the role `admin`: `holdfast token --role admin`"),
            "apiKey": { "type": "http", "scheme": "bearer", "description": "an API key: `holdfast keys new --account ID`" },
        }},
    });
    Bytes::from(whole.to_string())
}

fn bearer(about: &str) -> Value {
    json!({ "type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": about })
}

fn error_schema() -> Value {
    json!({ "type": "object", "required": ["error"], "properties": { "error": {
        "type": "object",
        "required": ["code", "message", "details", "request_id"],
        "properties": {
            "code": { "type": "string", "description": "stable; each has its page in docs/errors" },
            "message": { "type": "string" },
            "details": { "type": "object" },
            "request_id": { "type": "string" },
        },
    }}})
}

/// Errors as OpenAI's clients read them; a provider's own words are passed on.
fn open_ai_error_schema() -> Value {
    json!({ "type": "object", "required": ["error"], "properties": { "error": {
        "type": "object",
        "required": ["message"],
        "properties": {
            "message": { "type": "string" },
            "type": { "type": ["string", "null"] },
            "code": { "type": ["string", "null"] },
            "param": { "type": ["string", "null"] },
        },
    }}})
}

/// Errors as Anthropic's clients read them.
fn anthropic_error_schema() -> Value {
    json!({ "type": "object", "required": ["type", "error"], "properties": {
        "type": { "const": "error" },
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": { "type": { "type": "string" }, "message": { "type": "string" } },
        },
    }})
}

const fn error_of(shape: Shape) -> &'static str {
    match shape {
        Shape::Holdfast => "#/components/schemas/Error",
        Shape::OpenAi => "#/components/schemas/OpenAiError",
        Shape::Anthropic => "#/components/schemas/AnthropicError",
    }
}

/// The status of an answer without a body.
const NOTHING: u16 = 204;

fn one(operation: &Operation) -> Value {
    let mut responses = Map::new();
    responses.insert(
        operation.status.to_string(),
        json!({ "description": "done", "content": { "application/json": { "schema": answer(operation.answer) } } }),
    );
    for status in refusals(operation) {
        let mut body = json!({ "description": reason(status) });
        if status != NOTHING {
            let error = json!({ "$ref": error_of(Shape::of_path(operation.path)) });
            body["content"] = json!({ "application/json": { "schema": error } });
        }
        responses.insert(status.to_string(), body);
    }
    let parameters: Vec<Value> = operation.parameters.iter().map(parameter).collect();
    let mut described = json!({
        "summary": operation.summary,
        "tags": [operation.group],
        "operationId": format!("{} {}", operation.method.to_lowercase(), operation.path),
        "parameters": parameters,
        "responses": responses,
        "security": operation.access.scheme().map(|scheme| json!({ scheme: [] })).into_iter().collect::<Vec<_>>(),
    });
    if !operation.body.is_empty() {
        let content = json!({ "application/json": { "schema": object(operation.body) } });
        described["requestBody"] = json!({ "required": true, "content": content });
    }
    described
}

/// The refusals of an operation: its own, and those that its kind of access brings.
pub(super) fn refusals(operation: &Operation) -> Vec<u16> {
    let usual: &[u16] = if operation.access == Access::Anybody { &[429] } else { &[400, 401, 403, 429, 503] };
    let mut all: Vec<u16> = usual.iter().chain(operation.refusals).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What a status means here.
pub(super) const fn reason(status: u16) -> &'static str {
    match status {
        204 => "there is nothing to answer",
        400 => "the request is wrong",
        401 => "the credential is missing or refused",
        402 => "the balance does not cover it",
        403 => "the credential may not do this",
        404 => "there is no such thing",
        409 => "the state, or an earlier request with the same key, does not allow it",
        413 => "the body is too long",
        415 => "the body is not JSON",
        429 => "too many requests",
        502 | 504 => "the model's provider failed",
        _ => "not now: try again with the same key",
    }
}

/// An answer says `null` where it has nothing to say.
fn answer(fields: &[Field]) -> Value {
    let mut schema = object(fields);
    for field in fields.iter().filter(|field| field.place == Place::Optional) {
        let property = schema["properties"][field.name].take();
        schema["properties"][field.name] = json!({ "anyOf": [property, { "type": "null" }] });
    }
    schema
}

fn object(fields: &[Field]) -> Value {
    let property = |field: &Field| {
        let mut schema = field.kind.schema();
        schema["description"] = json!(field.about);
        (field.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    let required: Vec<&str> =
        fields.iter().filter(|field| field.place == Place::Required).map(|field| field.name).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

fn parameter(field: &Field) -> Value {
    let place = match field.place {
        Place::InPath => "path",
        Place::InHeader => "header",
        Place::InQuery | Place::Required | Place::Optional => "query",
    };
    json!({
        "name": field.name, "in": place, "required": field.place == Place::InPath,
        "description": field.about, "schema": field.kind.schema(),
    })
}
