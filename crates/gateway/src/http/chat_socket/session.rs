//! A connection from its first message to its close frame.

use super::conversation::Conversation;
use super::message::{self, Prompt, Refused};
use super::turn::{News, Turn};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::inference::caller;
use crate::http::limits::{Credential, Limit};
use crate::http::server::told;
use crate::identity::KeyRecord;
use crate::inference::{Ask, IfGone, Money, Wish};
use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use holdfast_adapters::providers::{Dialect, Headers};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often a caller is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// A caller of whom nothing is heard for so long has gone.
const QUIET_MAX: Duration = Duration::from_secs(65);
/// How long a caller may take to take a message.
const SEND_MAX: Duration = Duration::from_secs(10);

// One lost answer to a ping is not yet the end.
const _: () = assert!(PING_EVERY.as_secs() * 3 < QUIET_MAX.as_secs());

/// One connection.
pub(super) struct Session {
    state: AppState,
    key: Arc<KeyRecord>,
    conversation: Conversation,
    turn: Option<Turn>,
    model: String,
    limit: Limit<()>,
    /// Whether the caller knows that its balance is low.
    warned: bool,
}

/// Why a connection ends.
enum End {
    /// The caller has gone, or takes nothing.
    Gone,
    /// We close it, and say why.
    Close(u16, &'static str),
}

impl Session {
    pub(super) fn new(state: AppState, key: Arc<KeyRecord>) -> Self {
        let (model, limit) = (state.chat.model.clone(), Limit::new(state.chat.rate));
        Self { state, key, conversation: Conversation::default(), turn: None, model, limit, warned: false }
    }

    /// Talks until one side ends it. An answer that is still coming then is charged all the same.
    pub(super) async fn run(mut self, mut socket: WebSocket) {
        let Err(end) = self.talk(&mut socket).await else { return };
        if let End::Close(code, reason) = end {
            let frame = Message::Close(Some(CloseFrame { code, reason: reason.into() }));
            let _told = tokio::time::timeout(SEND_MAX, socket.send(frame)).await;
        }
    }

    async fn talk(&mut self, socket: &mut WebSocket) -> Result<(), End> {
        let mut stopping = self.state.stopping.clone();
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                biased;
                // An answer that is coming is waited for, as long as the server waits for others.
                () = told(&mut stopping), if self.turn.is_none() => {
                    return Err(End::Close(close_code::AWAY, "the server is stopping"));
                }
                news = next(&mut self.turn) => self.tell(socket, news).await?,
                message = socket.recv() => {
                    heard = Instant::now();
                    match message {
                        None => return Err(End::Gone),
                        Some(message) => self.hear(socket, message).await?,
                    }
                }
                _ = pings.tick() => {
                    if heard.elapsed() > QUIET_MAX {
                        return Err(End::Gone);
                    }
                    send(socket, Message::Ping(Bytes::new())).await?;
                }
            }
        }
    }

    async fn hear(&mut self, socket: &mut WebSocket, message: Result<Message, axum::Error>) -> Result<(), End> {
        let text = match message {
            Ok(Message::Text(text)) => text,
            // Pings are answered below us.
            Ok(Message::Ping(_) | Message::Pong(_)) => return Ok(()),
            Ok(Message::Binary(_)) => return Err(End::Close(close_code::UNSUPPORTED, "send text")),
            Ok(Message::Close(_)) => return Err(End::Gone),
            // It was too long, or no WebSocket: what follows cannot be understood.
            Err(_) => return Err(End::Close(close_code::SIZE, "the message is too long or not well formed")),
        };
        match self.ask(text.as_str()) {
            Ok(turn) => {
                self.turn = Some(turn);
                Ok(())
            }
            Err(refused) => event(socket, &message::refusal(&refused)).await,
        }
    }

    /// Has a prompt answered.
    fn ask(&self, text: &str) -> Result<Turn, Refused> {
        self.limit.check(&()).map_err(ApiError::RateLimited)?;
        if self.turn.is_some() {
            return Err(Refused::Answering);
        }
        let Prompt { text, model } = Prompt::read(text)?;
        // The key may have been revoked since the connection was made.
        let key = self.state.identity.keys.still_good(&self.key).map_err(ApiError::from)?;
        self.state.limits.credential(Credential::ApiKey(key.id)).map_err(ApiError::RateLimited)?;
        let model = model.as_ref().unwrap_or(&self.model);
        let body = json!({ "model": model, "messages": self.conversation.messages(&text), "stream": true });
        let bytes = Bytes::from(body.to_string());
        let wish = Wish {
            key: None,
            is_retry: false,
            fit: false,
            if_gone: IfGone::Drain,
            provider_key: None,
            headers: Headers { anthropic_version: None, anthropic_beta: None },
        };
        let at = self.state.inference.now();
        let ask = Ask::read(self.state.limited(caller(&key))?, wish, Dialect::ChatCompletions, &bytes, at)?;
        let reader = self.state.inference.answer(ask, &bytes)?;
        Ok(Turn::new(reader, text))
    }

    async fn tell(&mut self, socket: &mut WebSocket, news: News) -> Result<(), End> {
        match news {
            News::Text(delta) => event(socket, &message::text_delta(&delta)).await,
            News::Broke(error) => event(socket, &message::error(error.code(), &error.to_string())).await,
            News::Refused(error) => {
                self.turn = None;
                event(socket, &message::api_refusal(&error)).await
            }
            News::Ended(money) => {
                let Some(turn) = self.turn.take() else { return Ok(()) };
                event(socket, &message::turn_end(turn.charge(), money)).await?;
                self.conversation.remember(turn.prompt, turn.answer);
                match money {
                    Some(money) => self.warn(socket, money).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Warns once when the balance falls below the threshold.
    async fn warn(&mut self, socket: &mut WebSocket, Money { balance, .. }: Money) -> Result<(), End> {
        let threshold = self.state.inference.credits_low;
        let is_low = balance < threshold;
        let is_news = is_low && !self.warned;
        self.warned = is_low;
        if is_news { event(socket, &message::credit_warning(balance, threshold)).await } else { Ok(()) }
    }
}

/// What comes next of the answer; nothing ever, if none is coming.
async fn next(turn: &mut Option<Turn>) -> News {
    match turn {
        Some(turn) => turn.next().await,
        None => std::future::pending().await,
    }
}

async fn event(socket: &mut WebSocket, event: &Value) -> Result<(), End> {
    send(socket, Message::Text(event.to_string().into())).await
}

async fn send(socket: &mut WebSocket, message: Message) -> Result<(), End> {
    match tokio::time::timeout(SEND_MAX, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(End::Gone),
    }
}
