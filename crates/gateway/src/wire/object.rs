//! A JSON object and nothing else: a struct would also be read from an array of its fields in order.

use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Reads a `T` from an object.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnlyMaps<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyMaps<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_any(OnlyMaps(PhantomData)).map(Self)
    }
}

/// Reads a `T` from an object that is written in two places: some fields were said elsewhere (in a path, in a header), the
/// others stand in `text`. A field that is said in both is refused like any doubled field.
pub(crate) fn with_fields<'de, T: Deserialize<'de>>(
    text: &'de str,
    said: &'de [(&'static str, &'de str)],
) -> Result<T, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_any(AndSaid { said, kind: PhantomData })?;
    deserializer.end()?;
    Ok(read)
}

struct AndSaid<'de, T> {
    said: &'de [(&'static str, &'de str)],
    kind: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AndSaid<'de, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(Chained { said: self.said, value: None, map }))
    }
}

/// The fields that were said elsewhere, then those of the object.
struct Chained<'de, A> {
    said: &'de [(&'static str, &'de str)],
    value: Option<&'de str>,
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Chained<'de, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some((&(name, value), rest)) = self.said.split_first() else { return self.map.next_key_seed(seed) };
        (self.said, self.value) = (rest, Some(value));
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        match self.value.take() {
            Some(value) => seed.deserialize(BorrowedStrDeserializer::new(value)),
            None => self.map.next_value_seed(seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
    enum Body {
        Go { id: String, far: Option<u64> },
    }

    #[test]
    fn fields_said_elsewhere_belong_to_the_object() {
        let read = |text| with_fields::<Body>(text, &[("op", "go"), ("id", "x")]).map_err(|error| error.to_string());
        assert_eq!(read("{}"), Ok(Body::Go { id: "x".to_owned(), far: None }));
        assert_eq!(read(r#"{"far":3}"#), Ok(Body::Go { id: "x".to_owned(), far: Some(3) }));
        for (text, why) in [
            (r#"{"id":"y"}"#, "duplicate field `id`"),
            (r#"{"op":"go"}"#, "duplicate field `op`"),
            (r#"{"far":1,"far":2}"#, "duplicate field `far`"),
            (r#"{"near":1}"#, "unknown field `near`"),
            ("[]", "invalid type: sequence, expected a JSON object"),
            ("{} {}", "trailing characters"),
            ("", "EOF"),
        ] {
            assert!(read(text).is_err_and(|said| said.starts_with(why)), "{text}: {:?}", read(text));
        }
    }
}
