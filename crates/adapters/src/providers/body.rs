//! A request's body, taken apart at its first level only: what nobody here reads stays the caller's own bytes.
//!
//! # Invariants
//! - A field that is not rewritten goes upstream byte for byte, so no number loses a digit and no unknown field is lost.
//! - A name stands once. Of fields with one name the last one counts, as it does for providers; so nobody can show one
//!   text to us, who count it, and another to the model.

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::{RawValue, Value};
use std::fmt;

/// A JSON object whose fields are raw. It prints their names only: what people write to a model is their own.
#[derive(Clone)]
pub struct Body {
    fields: Vec<(String, Box<RawValue>)>,
}

/// A body, or a field of it, that is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBody(pub(crate) String);

/// What to write in the place of a field.
#[derive(Debug)]
pub(crate) enum Instead {
    /// This JSON text.
    Text(String),
    /// Nothing: the field is left out.
    Nothing,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Body {
    /// Reads a body once.
    ///
    /// # Errors
    /// If it is not one JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidBody> {
        serde_json::from_slice(bytes).map_err(|error| InvalidBody(format!("the body is not a JSON object: {error}")))
    }

    /// The raw value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&RawValue> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Reads a field; `null` is the same as none.
    ///
    /// # Errors
    /// If it is something else than a `T`.
    pub fn read<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Result<Option<T>, InvalidBody> {
        let Some(raw) = self.get(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map_err(|error| InvalidBody(format!("`{name}` is not understood: {error}")))
    }

    /// Writes a field, in its old place if it has one.
    pub fn set(&mut self, name: &str, value: &Value) {
        let Ok(raw) = serde_json::value::to_raw_value(value) else { return };
        match self.fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = raw,
            None => self.fields.push((name.to_owned(), raw)),
        }
    }

    /// Takes a field away.
    pub fn remove(&mut self, name: &str) {
        self.fields.retain(|(known, _)| known != name);
    }

    /// The names of all fields, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// The body as JSON text.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.with(&[])
    }

    /// The body as JSON text with some fields written otherwise; those it does not have are put at its end.
    pub(crate) fn with(&self, changes: &[(&str, Instead)]) -> Bytes {
        let length: usize = self.fields.iter().map(|(name, value)| name.len() + value.get().len() + 4).sum();
        let mut text = String::with_capacity(length + 128);
        text.push('{');
        for (name, value) in &self.fields {
            match changes.iter().find(|(changed, _)| changed == name) {
                None => write_field(&mut text, name, value.get()),
                Some((_, Instead::Text(new))) => write_field(&mut text, name, new),
                Some((_, Instead::Nothing)) => {}
            }
        }
        for (name, change) in changes {
            if let (Instead::Text(new), None) = (change, self.get(name)) {
                write_field(&mut text, name, new);
            }
        }
        text.push('}');
        Bytes::from(text)
    }
}

fn write_field(text: &mut String, name: &str, value: &str) {
    if text.len() > 1 {
        text.push(',');
    }
    // A name is written as a JSON text, for it may hold anything; nearly all are words that stand in it as they are.
    if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        text.extend(["\"", name, "\":"]);
    } else {
        text.push_str(&Value::from(name).to_string());
        text.push(':');
    }
    text.push_str(value);
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Body;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
                let mut fields: Vec<(String, Box<RawValue>)> = Vec::with_capacity(8);
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    match fields.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, old)) => *old = value,
                        None => fields.push((name, value)),
                    }
                    if fields.len() > FIELDS_MAX {
                        return Err(serde::de::Error::custom("it has too many fields"));
                    }
                }
                Ok(Body { fields })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Names are looked up one after the other, so there must not be many; no API has a hundred.
const FIELDS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, changes: &[(&str, Instead)], expected: &str) {
        assert_eq!(Body::parse(body.as_bytes()).unwrap().with(changes), expected.as_bytes());
    }

    #[test]
    fn what_is_not_rewritten_stays_byte_for_byte() {
        let odd = r#"{"model":"a","seed":123456789012345678901234567890,"x":{"b" : 1.00,"a":[ 1]},"é\"":"\u00e9"}"#;
        let kept = r#"{"model":"b","seed":123456789012345678901234567890,"x":{"b" : 1.00,"a":[ 1]},"é\"":"\u00e9","stream":true}"#;
        check(odd, &[("model", Instead::Text("\"b\"".into())), ("stream", Instead::Text("true".into()))], kept);
    }

    #[test]
    fn a_field_can_be_left_out() {
        check(r#"{"a":1,"b":2}"#, &[("a", Instead::Nothing), ("c", Instead::Nothing)], r#"{"b":2}"#);
        check("{}", &[("a", Instead::Text("1".into()))], r#"{"a":1}"#);
    }

    #[test]
    fn of_two_fields_with_one_name_only_the_last_is_seen_or_sent() {
        let body = Body::parse(br#"{"messages":"short","model":"a","messages":"long"}"#).unwrap();
        assert_eq!(body.read::<String>("messages").unwrap().as_deref(), Some("long"));
        assert_eq!(body.to_bytes(), &br#"{"messages":"long","model":"a"}"#[..]);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[]", "1", "{\"a\":}", "{\"a\":1} x", "null"] {
            assert!(Body::parse(text.as_bytes()).is_err(), "{text}");
        }
        let many: Vec<String> = (0..300).map(|number| format!("\"f{number}\":1")).collect();
        assert!(Body::parse(format!("{{{}}}", many.join(",")).as_bytes()).is_err());
    }
}
