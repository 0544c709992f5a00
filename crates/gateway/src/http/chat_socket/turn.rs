//! One prompt while it is answered.

use crate::http::error::ApiError;
use crate::inference::{Head, Money, Reader};
use holdfast_adapters::providers::ProviderError;
use holdfast_domain::ChargeId;
use serde_json::Value;
use std::sync::Arc;

/// A prompt that is being answered.
pub(super) struct Turn {
    reader: Reader,
    pub(super) prompt: String,
    /// What has come so far.
    pub(super) answer: String,
    begun: bool,
    /// Whether it was told that the answer broke off.
    told_broke: bool,
}

/// What comes next.
pub(super) enum News {
    Text(String),
    /// The provider broke off; the end comes after this.
    Broke(Arc<ProviderError>),
    Ended(Option<Money>),
    Refused(Arc<ApiError>),
}

impl Turn {
    pub(super) fn new(reader: Reader, prompt: String) -> Self {
        Self { reader, prompt, answer: String::new(), begun: false, told_broke: false }
    }

    /// What it is charged as.
    pub(super) fn charge(&self) -> ChargeId {
        self.reader.charge()
    }

    /// Waits for what comes next. Nothing is lost if the wait is given up.
    pub(super) async fn next(&mut self) -> News {
        if !self.begun {
            let head = self.reader.head().await;
            self.begun = true;
            match head {
                Head::Refused(error) => return News::Refused(error),
                Head::Whole { body, .. } => return self.heard(whole_text(&body)),
                Head::Stream => {}
            }
        }
        while let Some(part) = self.reader.next().await {
            if !part.text.is_empty() {
                return self.heard(part.text);
            }
        }
        if let Some(error) = self.reader.broke().filter(|_| !self.told_broke) {
            self.told_broke = true;
            return News::Broke(error);
        }
        // A charge that could not be made is told instead of the end.
        match self.reader.head().await {
            Head::Refused(error) => News::Refused(error),
            Head::Whole { .. } | Head::Stream => News::Ended(self.reader.money()),
        }
    }

    fn heard(&mut self, text: String) -> News {
        self.answer.push_str(&text);
        News::Text(text)
    }
}

fn whole_text(body: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}
