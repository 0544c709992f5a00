//! Fields of a request, taken one by one; what is left at the end was not understood.

use super::Untranslatable;
use serde_json::{Map, Value};

/// The fields of an object that have not been taken yet, and what the object is called in an error.
pub(super) struct Fields {
    left: Map<String, Value>,
    place: &'static str,
}

impl Fields {
    pub(super) fn new(left: Map<String, Value>, place: &'static str) -> Self {
        Self { left, place }
    }

    pub(super) fn of(value: Value, place: &'static str) -> Result<Self, Untranslatable> {
        match value {
            Value::Object(left) => Ok(Self::new(left, place)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(format!("{place} must be an object"))
            }
        }
    }

    /// Takes a field; `null` is none.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be a text.
    pub(super) fn text(&mut self, name: &str) -> Result<String, Untranslatable> {
        match self.take(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) | None => Err(format!("{} needs a text as `{name}`", self.place)),
        }
    }

    /// Takes a field that must be a list.
    pub(super) fn list(&mut self, name: &str) -> Result<Vec<Value>, Untranslatable> {
        match self.take(name) {
            Some(Value::Array(list)) => Ok(list),
            None => Ok(Vec::new()),
            Some(_) => Err(format!("{} needs a list as `{name}`", self.place)),
        }
    }

    /// Looks at a number.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.left.get(name)?.as_f64()
    }

    /// Leaves a field out that is only a hint.
    pub(super) fn hint(&mut self, name: &str) {
        self.left.remove(name);
    }

    /// Leaves a field out if it has one of the values that change nothing.
    pub(super) fn harmless(&mut self, name: &str, values: &[Value]) {
        if self.left.get(name).is_some_and(|value| values.contains(value)) {
            self.left.remove(name);
        }
    }

    /// Moves a field over as it is, perhaps under another name.
    pub(super) fn carry(&mut self, name: &str, to: &mut Map<String, Value>, new: &str) {
        if let Some(value) = self.take(name) {
            to.insert(new.to_owned(), value);
        }
    }

    /// Refuses what was not taken.
    pub(super) fn end(self) -> Result<(), Untranslatable> {
        match self.left.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => Err(format!("`{name}` of {} has no counterpart there; leave it out", self.place)),
        }
    }
}
