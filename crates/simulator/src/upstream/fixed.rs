//! The answer of the benchmark's model, prepared once in every shape.

use super::answer::{Answer, Ending, Said, Usage};
use super::request::Asked;
use super::wire::{Api, Carries, Event, Reply, Told};
use super::{FIXED_CHUNKS, FIXED_MODEL};
use std::sync::Arc;

/// The tokens of the prompt that it says it had.
const INPUT_TOKENS: u64 = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Whole,
    Stream,
    StreamWithUsage,
}

/// See the module.
pub(super) struct Fixed {
    prepared: Vec<(Api, Shape, Arc<[Event]>)>,
}

impl Fixed {
    pub(super) fn new() -> Self {
        let answer = answer();
        let mut prepared: Vec<(Api, Shape, Arc<[Event]>)> = Vec::new();
        for api in [Api::Chat, Api::Responses, Api::Messages] {
            for shape in [Shape::Whole, Shape::Stream, Shape::StreamWithUsage] {
                let wants_usage = shape == Shape::StreamWithUsage;
                let reply = Reply { number: 0, model: FIXED_MODEL, answer: &answer, told: &Told::Truth, wants_usage };
                let events = match shape {
                    Shape::Whole => vec![Event { bytes: api.whole(&reply), carries: Carries::Usage }],
                    Shape::Stream | Shape::StreamWithUsage => api.events(&reply),
                };
                prepared.push((api, shape, events.into()));
            }
        }
        Self { prepared }
    }

    pub(super) fn events(&self, api: Api, asked: &Asked) -> Arc<[Event]> {
        let shape = match (asked.is_stream, asked.wants_usage) {
            (false, _) => Shape::Whole,
            (true, false) => Shape::Stream,
            (true, true) => Shape::StreamWithUsage,
        };
        let found = self.prepared.iter().find(|(of, in_shape, _)| (*of, *in_shape) == (api, shape));
        Arc::clone(&found.expect("every API is prepared in every shape").2)
    }
}

/// `word-01 word-02 …`, one per chunk.
pub(super) fn answer() -> Answer {
    let piece = |number: usize| format!("{}word-{number:02}", if number > 1 { " " } else { "" });
    Answer {
        said: Said::Text((1..=FIXED_CHUNKS).map(piece).collect()),
        ending: Ending::Complete,
        usage: Usage { input: INPUT_TOKENS, cached: 0, output: FIXED_CHUNKS as u64, reasoning: 0 },
    }
}
