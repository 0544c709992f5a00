//! The operations of this module, as they are documented.

use super::openapi::{Access, Field, Kind, Operation, Place};

pub(super) const fn field(name: &'static str, kind: Kind, place: Place, about: &'static str) -> Field {
    Field { name, kind, place, about }
}

const ID: Field = field("id", Kind::Text, Place::InPath, "the reservation's billing_entry_id");
const ACCOUNT: Field = field("id", Kind::Text, Place::InPath, "the account's id");
const KEY: Field = field(
    "idempotency-key",
    Kind::Text,
    Place::InHeader,
    "1 to 64 of A-Z a-z 0-9 _ -; the same request with the same key is done once, for ever",
);

/// What an entry tells of a reservation.
const RECEIPT: &[Field] = &[
    field("billing_entry_id", Kind::Text, Place::Required, "the reservation"),
    field("account_id", Kind::Text, Place::Required, "whose"),
    field("state", Kind::Text, Place::Required, "the state that it is in now, such as RESERVE_HELD"),
    field("kind", Kind::Text, Place::Required, "the kind of entry"),
    field("held_cu", Kind::Amount, Place::Optional, "what it holds, where the entry tells"),
    field("balance_cu", Kind::Amount, Place::Required, "what the account can spend now"),
    field("account_held_cu", Kind::Amount, Place::Required, "what all its reservations hold"),
    field("expires_at", Kind::Moment, Place::Optional, "when the hold ends by itself"),
    field("charged_cu", Kind::Amount, Place::Optional, "what a commit charged"),
    field("returned_cu", Kind::Amount, Place::Optional, "what was given back"),
    field("uncollected_cu", Kind::Amount, Place::Optional, "what could not be charged"),
    field("offset", Kind::Count, Place::Required, "the entry's place in the journal; it is durable"),
    field("at", Kind::Moment, Place::Required, "when"),
];

const MINTED: &[Field] = &[
    field("account_id", Kind::Text, Place::Required, "whose"),
    field("amount_cu", Kind::Amount, Place::Required, "how much"),
    field("balance_cu", Kind::Amount, Place::Required, "what the account can spend now"),
    field("offset", Kind::Count, Place::Required, "the entry's place in the journal; it is durable"),
];

const API_KEY: &[Field] = &[
    field("id", Kind::Text, Place::Required, "the key's id"),
    field("account_id", Kind::Text, Place::Optional, "the account that it spends from; none of an admin key"),
    field("hint", Kind::Text, Place::Required, "its first characters"),
    field("scopes", Kind::Texts, Place::Required, "inference and read, or admin alone"),
    field("daily_limit_cu", Kind::Amount, Place::Optional, "the most that it may spend a day"),
    field("total_limit_cu", Kind::Amount, Place::Optional, "the most that it may ever spend"),
    field("expires_at", Kind::Moment, Place::Optional, "when it ends by itself"),
    field("revoked_at", Kind::Moment, Place::Optional, "when it was revoked"),
    field("api_key", Kind::Text, Place::Optional, "the key itself, only in the answer that makes it"),
];

const LIMIT: &[Field] = &[
    field("of", Kind::Text, Place::Required, "account, team or organisation"),
    field("id", Kind::Text, Place::Required, "whose"),
    field("per_day_cu", Kind::Amount, Place::Optional, "the most that may be held and charged a day (UTC)"),
    field("used_today_cu", Kind::Amount, Place::Required, "what has been, today"),
    field("in_total_cu", Kind::Amount, Place::Optional, "the most that may ever be held and charged"),
    field("used_in_total_cu", Kind::Amount, Place::Required, "what has been, since a limit was first set"),
    field("team", Kind::Text, Place::Optional, "the team of an account"),
    field("organisation", Kind::Text, Place::Optional, "the organisation of a team"),
    field("set_at", Kind::Moment, Place::Optional, "when it was last changed"),
];
const PER_DAY: Field = field("per_day_cu", Kind::Text, Place::Optional, "an amount of credits, or none");
const IN_TOTAL: Field = field("in_total_cu", Kind::Text, Place::Optional, "an amount of credits, or none");
const TEAM: Field = field("team", Kind::Text, Place::Optional, "the team that it belongs to, or none");
const ORGANISATION: Field = field("organisation", Kind::Text, Place::Optional, "where it belongs to, or none");
const SPENDER: Field = field("id", Kind::Text, Place::InPath, "whose limit");

/// An operation that shows a limit.
const fn show_limit(path: &'static str, summary: &'static str) -> Operation {
    Operation {
        access: Access::Admin,
        parameters: &[SPENDER],
        refusals: &[],
        ..look("Administration", path, summary, LIMIT)
    }
}

/// An operation that changes a limit.
const fn set_limit(path: &'static str, summary: &'static str, body: &'static [Field]) -> Operation {
    Operation { method: "PATCH", body, refusals: &[413, 415], ..show_limit(path, summary) }
}

/// An operation on one reservation.
const fn on_reservation(path: &'static str, summary: &'static str, body: &'static [Field]) -> Operation {
    Operation {
        method: "POST",
        path,
        group: "Reservations",
        summary,
        access: Access::Service,
        parameters: &[ID, KEY],
        body,
        status: 200,
        answer: RECEIPT,
        refusals: &[402, 404, 409, 413, 415],
    }
}

/// An operation that only looks.
pub(super) const fn look(
    group: &'static str,
    path: &'static str,
    summary: &'static str,
    answer: &'static [Field],
) -> Operation {
    Operation {
        method: "GET",
        path,
        group,
        summary,
        access: Access::Service,
        parameters: &[],
        body: &[],
        status: 200,
        answer,
        refusals: &[404],
    }
}

/// Every operation that is served here.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        method: "POST",
        path: "/api/v1/reservations",
        group: "Reservations",
        summary: "Hold credits before work is done",
        access: Access::Service,
        parameters: &[KEY],
        body: &[
            field("account_id", Kind::Text, Place::Required, "whose credits"),
            field("amount_cu", Kind::Amount, Place::Optional, "how many; or give model, input_tokens and max_tokens"),
            field("model", Kind::Text, Place::Optional, "a priced model: its rates are frozen"),
            field("input_tokens", Kind::Count, Place::Optional, "tokens of the prompt"),
            field("max_tokens", Kind::Count, Place::Optional, "the most tokens that the answer may have"),
            field("request_id", Kind::Text, Place::Optional, "the reservation's id: the same one is held once"),
            field("ttl_s", Kind::Count, Place::Optional, "how long it is held, in seconds; 24 hours if not said"),
            field("overrun", Kind::Text, Place::Optional, "cost above the hold: cap, available or refuse"),
            field("on_expiry", Kind::Text, Place::Optional, "work that nobody settles: release or charge_estimate"),
            field("rates", Kind::Object, Place::Optional, "input_usd_per_mtok and output_usd_per_mtok, to be frozen"),
        ],
        status: 201,
        answer: RECEIPT,
        refusals: &[402, 404, 409, 413, 415],
    },
    Operation {
        parameters: &[ID],
        ..look("Reservations", "/api/v1/reservations/{id}", "A reservation and its whole life", RECEIPT)
    },
    on_reservation(
        "/api/v1/reservations/{id}/commit",
        "Charge what the work cost, and give the rest back",
        &[
            field("actual_cu", Kind::Amount, Place::Optional, "what it cost; or give usage"),
            field("usage", Kind::Object, Place::Optional, "input_tokens and output_tokens, at the frozen rates"),
            field("final", Kind::Flag, Place::Optional, "false: take a part, keep the rest held (needs a key)"),
        ],
    ),
    on_reservation(
        "/api/v1/reservations/{id}/increase",
        "Hold more (needs a key)",
        &[field("amount_cu", Kind::Amount, Place::Required, "how many more")],
    ),
    on_reservation(
        "/api/v1/reservations/{id}/extend",
        "Hold for longer, counted from now (needs a key)",
        &[field("ttl_s", Kind::Count, Place::Required, "for how many seconds")],
    ),
    on_reservation("/api/v1/reservations/{id}/start", "Say that the work has been sent upstream", &[]),
    on_reservation("/api/v1/reservations/{id}/release", "Give a hold back", &[]),
    on_reservation(
        "/api/v1/reservations/{id}/void",
        "Take a charge back",
        &[field("reason", Kind::Text, Place::Required, "why, for the record")],
    ),
    Operation {
        method: "POST",
        path: "/api/v1/batch",
        group: "Reservations",
        summary: "Up to 8,190 of these in one call of at most 4 MiB, answered in order, each with its own status",
        access: Access::Service,
        parameters: &[],
        body: &[field(
            "requests",
            Kind::Objects,
            Place::Required,
            "each a body as above with `op` (reserve, start, increase, extend, commit, release, void), `id` and `key`",
        )],
        status: 200,
        answer: &[field("answers", Kind::Objects, Place::Required, "each with `status` and the fields of its answer")],
        refusals: &[413, 415],
    },
    Operation {
        parameters: &[
            ACCOUNT,
            field("as_of", Kind::Text, Place::InQuery, "an entry's offset or a moment, instead of now"),
        ],
        ..look(
            "Accounts",
            "/api/v1/accounts/{id}/balance",
            "What an account has, now or as of any entry or moment",
            &[
                field("account_id", Kind::Text, Place::Required, "whose"),
                field("balance_cu", Kind::Amount, Place::Required, "what can be spent"),
                field("held_cu", Kind::Amount, Place::Required, "what open reservations hold"),
                field("open_holds", Kind::Count, Place::Optional, "how many reservations are open"),
                field("offset", Kind::Count, Place::Optional, "the last entry of its history"),
            ],
        )
    },
    Operation {
        parameters: &[
            ACCOUNT,
            field("cursor", Kind::Text, Place::InQuery, "the next_cursor of the page before"),
            field("limit", Kind::Count, Place::InQuery, "rows of a page, 100 if not said, at most 1,000"),
        ],
        ..look(
            "Accounts",
            "/api/v1/accounts/{id}/history",
            "What happened to an account, newest first",
            &[
                field("entries", Kind::Objects, Place::Required, "what changed, and the balances after it"),
                field("next_cursor", Kind::Text, Place::Optional, "for the next page; null on the last"),
            ],
        )
    },
    Operation {
        parameters: &[field("offset", Kind::Count, Place::InPath, "its place in the journal")],
        ..look(
            "Accounts",
            "/api/v1/entries/{offset}",
            "One entry of the journal, with its postings and its frame",
            &[
                field("offset", Kind::Count, Place::Required, "its place in the journal"),
                field("postings", Kind::Objects, Place::Required, "they sum to zero"),
            ],
        )
    },
    Operation {
        method: "POST",
        path: "/api/v1/admin/mint",
        group: "Administration",
        summary: "Credit an account (needs a key)",
        access: Access::Admin,
        parameters: &[KEY],
        body: &[
            field("account_id", Kind::Text, Place::Required, "whose"),
            field("amount_cu", Kind::Amount, Place::Required, "how much"),
            field("reason", Kind::Text, Place::Required, "why, for the record"),
        ],
        status: 201,
        answer: MINTED,
        refusals: &[409, 413, 415],
    },
    Operation {
        method: "POST",
        path: "/api/v1/admin/keys",
        group: "Administration",
        summary: "Make an API key, and show it this once",
        access: Access::Admin,
        parameters: &[],
        body: &[
            field("account_id", Kind::Text, Place::Optional, "the account that it spends from; none for an admin key"),
            field("name", Kind::Text, Place::Optional, "to know it by"),
            field("expires_s", Kind::Count, Place::Optional, "how long it lives, in seconds; for ever if not said"),
            field("daily_limit_cu", Kind::Amount, Place::Optional, "the most that it may spend a day"),
            field("total_limit_cu", Kind::Amount, Place::Optional, "the most that it may ever spend"),
            field("scopes", Kind::Texts, Place::Optional, "inference, read (both if not said), or admin alone"),
        ],
        status: 201,
        answer: API_KEY,
        refusals: &[413, 415],
    },
    Operation {
        access: Access::Admin,
        parameters: &[
            field("account_id", Kind::Text, Place::InQuery, "of this account only"),
            field("after", Kind::Text, Place::InQuery, "those after this key"),
            field("limit", Kind::Count, Place::InQuery, "at most so many"),
        ],
        ..look(
            "Administration",
            "/api/v1/admin/keys",
            "API keys in the order in which they were made",
            &[
                field("keys", Kind::Objects, Place::Required, "without the keys themselves"),
                field("next", Kind::Text, Place::Optional, "what to give as `after`; null on the last page"),
            ],
        )
    },
    Operation {
        access: Access::Admin,
        parameters: &[field("id", Kind::Text, Place::InPath, "the key's id")],
        ..look("Administration", "/api/v1/admin/keys/{id}", "One API key", API_KEY)
    },
    Operation {
        method: "DELETE",
        access: Access::Admin,
        parameters: &[field("id", Kind::Text, Place::InPath, "the key's id")],
        ..look("Administration", "/api/v1/admin/keys/{id}", "Revoke an API key, at once and for ever", API_KEY)
    },
    Operation {
        access: Access::Admin,
        parameters: &[
            field("after", Kind::Text, Place::InQuery, "the next of the page before"),
            field("limit", Kind::Count, Place::InQuery, "at most so many"),
        ],
        refusals: &[],
        ..look(
            "Administration",
            "/api/v1/admin/limits",
            "Every limit of an account, team or organisation",
            &[
                field("limits", Kind::Objects, Place::Required, "each with what is used of it"),
                field("next", Kind::Text, Place::Optional, "what to give as `after`; null on the last page"),
            ],
        )
    },
    show_limit("/api/v1/admin/accounts/{id}/limits", "What an account may spend"),
    set_limit(
        "/api/v1/admin/accounts/{id}/limits",
        "Limit what an account may spend, whatever its credential; what is not said stays",
        &[PER_DAY, IN_TOTAL, TEAM],
    ),
    show_limit("/api/v1/admin/teams/{id}/limits", "What the accounts of a team may spend together"),
    set_limit(
        "/api/v1/admin/teams/{id}/limits",
        "Limit what the accounts of a team may spend together; what is not said stays",
        &[PER_DAY, IN_TOTAL, ORGANISATION],
    ),
    show_limit("/api/v1/admin/organisations/{id}/limits", "What the teams of an organisation may spend together"),
    set_limit(
        "/api/v1/admin/organisations/{id}/limits",
        "Limit what the teams of an organisation may spend together; what is not said stays",
        &[PER_DAY, IN_TOTAL],
    ),
    Operation {
        access: Access::ApiKey,
        ..look("Models", "/v1/key", "The API key that asks, and its balance", API_KEY)
    },
    open(
        "/health",
        "How the server is; always answers",
        &[
            field("status", Kind::Text, Place::Required, "ok, degraded, stopping or failed"),
            field(
                "engine",
                Kind::Text,
                Place::Optional,
                "what holds the books: embedded or postgres; not while the server starts",
            ),
        ],
    ),
    Operation {
        refusals: &[503],
        ..open("/ready", "Whether to send work here", &[field("ready", Kind::Flag, Place::Required, "whether")])
    },
    open("/metrics", "Numbers for Prometheus, as text", &[]),
    open(
        "/.well-known/jwks.json",
        "The public halves of the server's signing keys",
        &[field("keys", Kind::Objects, Place::Required, "JSON Web Keys")],
    ),
    open("/openapi.json", "This description", &[]),
    open("/docs", "This description as a page", &[]),
];

/// An operation that anybody may ask for.
const fn open(path: &'static str, summary: &'static str, answer: &'static [Field]) -> Operation {
    Operation { access: Access::Anybody, refusals: &[], ..look("Server", path, summary, answer) }
}
