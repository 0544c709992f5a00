//! The models' operations, as they are documented. Their bodies and answers are the models' own APIs.

use super::openapi::{Access, Field, Kind, Operation, Place};

const fn field(name: &'static str, kind: Kind, place: Place, about: &'static str) -> Field {
    Field { name, kind, place, about }
}

const MODEL: Field = field("model", Kind::Text, Place::Required, "a model that has a price, such as `echo`");
const STREAM: Field = field("stream", Kind::Flag, Place::Optional, "whether to answer piece by piece, as events");
const HEADERS: &[Field] = &[
    field(
        "idempotency-key",
        Kind::Text,
        Place::InHeader,
        "1 to 64 of A-Z a-z 0-9 _ -; the same request is answered and charged once",
    ),
    field("x-holdfast-fit", Kind::Text, Place::InHeader, "`true`: rather a shorter answer than none"),
    field(
        "x-holdfast-on-disconnect",
        Kind::Text,
        Place::InHeader,
        "`drain` (the default), `cancel`, or `drain=CU` with the most credits to be charged",
    ),
    field(
        "x-holdfast-provider-key",
        Kind::Text,
        Place::InHeader,
        "your own key for the provider; then nothing is charged",
    ),
];

/// A call of a model.
const fn call(path: &'static str, summary: &'static str, body: &'static [Field]) -> Operation {
    Operation {
        method: "POST",
        path,
        group: "Models",
        summary,
        access: Access::ApiKey,
        parameters: HEADERS,
        body,
        status: 200,
        answer: &[],
        refusals: &[402, 404, 409, 413, 415, 502, 504],
    }
}

const fn look(path: &'static str, summary: &'static str, answer: &'static [Field]) -> Operation {
    Operation {
        method: "GET",
        path,
        group: "Models",
        summary,
        access: Access::ApiKey,
        parameters: &[],
        body: &[],
        status: 200,
        answer,
        refusals: &[],
    }
}

pub(super) const OPERATIONS: &[Operation] = &[
    call(
        "/v1/chat/completions",
        "Chat, as OpenAI's clients ask for it",
        &[MODEL, field("messages", Kind::Objects, Place::Required, "the conversation"), STREAM],
    ),
    call(
        "/v1/responses",
        "Responses, as OpenAI's clients ask for them",
        &[MODEL, field("input", Kind::Any, Place::Required, "a text, or a list of items"), STREAM],
    ),
    call(
        "/v1/messages",
        "Messages, as Anthropic's clients ask for them",
        &[
            MODEL,
            field("max_tokens", Kind::Count, Place::Required, "the longest answer"),
            field("messages", Kind::Objects, Place::Required, "the conversation"),
            STREAM,
        ],
    ),
    call(
        "/v1/embeddings",
        "Embeddings, as OpenAI's clients ask for them",
        &[MODEL, field("input", Kind::Any, Place::Required, "a text, or a list of texts")],
    ),
    look("/v1/models", "The models", &[field("data", Kind::Objects, Place::Required, "each with its `id`")]),
    Operation {
        parameters: &[field("model", Kind::Text, Place::InPath, "its name")],
        refusals: &[400],
        ..look("/v1/models/{model}", "One model", &[field("id", Kind::Text, Place::Required, "its name")])
    },
    look(
        "/v1/credits",
        "What the key's account can spend",
        &[
            field("account_id", Kind::Text, Place::Required, "the account"),
            field("balance_cu", Kind::Amount, Place::Required, "what it can spend"),
            field("held_cu", Kind::Amount, Place::Required, "what running requests hold"),
        ],
    ),
    Operation {
        parameters: &[field("key", Kind::Text, Place::InPath, "the request's idempotency key")],
        refusals: &[404],
        ..look(
            "/v1/requests/{key}",
            "What became of a request, for who lost its answer",
            &[
                field("id", Kind::Text, Place::Required, "the charge"),
                field("state", Kind::Text, Place::Required, "FINALIZE_PENDING when it is charged, RELEASED when not"),
                field("charged_cu", Kind::Amount, Place::Required, "what it cost"),
            ],
        )
    },
    Operation {
        access: Access::Service,
        body: &[
            field("account_id", Kind::Text, Place::Required, "who pays"),
            MODEL,
            field("messages", Kind::Objects, Place::Required, "the conversation"),
            field("max_tokens", Kind::Count, Place::Optional, "the longest answer"),
            STREAM,
        ],
        answer: &[
            field("request_id", Kind::Text, Place::Required, "the charge"),
            field("output", Kind::Any, Place::Required, "the answer"),
            field("usage", Kind::Object, Place::Required, "the tokens by kind"),
            field("cost_cu", Kind::Amount, Place::Required, "what it cost"),
            field("balance_cu", Kind::Amount, Place::Required, "what the account can spend after it"),
        ],
        ..call("/api/v1/invoke", "Ask a model for any account", &[])
    },
];
