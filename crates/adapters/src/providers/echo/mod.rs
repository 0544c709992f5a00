//! The built-in model: it answers with what it was told. No network, no chance, no clock: the same call has the same answer.
//!
//! - **Answer**: the text of the last message (the user's words, or else the result of a tool), streamed word by word.
//! - **Usage**: a token is a word, that is, a run of characters that are not white space. Input is every word of every text
//!   in the conversation; output is every word of the answer. So anybody can count it again.
//! - **Tools**: if the request has tools and the user's text says `call NAME {json}`, the answer is that tool call; its
//!   tokens are its name and the words of its arguments.
//! - **Limit**: it stops at the limit of output, and says so.
//! - **Misbehaviour** for tests and demonstrations: see [`Control`].

mod control;
mod embeddings;
mod prompt;
mod speech;

pub use control::{Control, Misreport};
pub(crate) use speech::Speech;

use super::call::{Call, Delivery, Dialect};
use super::error::{ProviderError, error_body};
use super::reply::Whole;
use control::read_controls;
use prompt::Prompt;
use speech::Plan;
use std::time::Duration;

/// What the model gives.
pub(crate) enum Answer {
    Whole(Whole),
    Speech(Box<Speech>),
}

/// Answers a call.
pub(crate) async fn call(call: &Call, model: &str) -> Result<Answer, ProviderError> {
    if call.dialect == Dialect::Embeddings {
        return embeddings::answer(call, model).map(Answer::Whole);
    }
    let mut prompt = Prompt::read(call)?;
    let refused = |message: String| refusal(400, call.dialect, &message);
    let control = read_controls(model, &mut prompt.text).map_err(refused)?;
    if let Some(status) = control.fail {
        return Err(failure(status, &control, call.dialect));
    }
    let plan = Plan::new(&prompt, &control);
    match call.delivery {
        Delivery::Stream => Ok(Answer::Speech(Box::new(Speech::new(plan, control, call, model)))),
        Delivery::Whole => {
            tokio::time::sleep(control.delay.saturating_mul(plan.words())).await;
            plan.whole(&control, call, model).map(Answer::Whole)
        }
    }
}

/// A refusal in the shape that a provider would give it.
fn refusal(status: u16, dialect: Dialect, message: &str) -> ProviderError {
    ProviderError::Refused { status, body: error_body(dialect, "invalid_request_error", "echo", message) }
}

/// The failure that was asked for, as a provider's status would be understood.
fn failure(status: u16, control: &Control, dialect: Dialect) -> ProviderError {
    match status {
        429 => ProviderError::RateLimited { retry_after: control.retry_after_s.map(Duration::from_secs) },
        500..=599 => ProviderError::Failed { status },
        _ => refusal(status, dialect, "this failure was asked for"),
    }
}
