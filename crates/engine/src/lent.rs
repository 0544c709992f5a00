//! A value that its owner can lend to a reader, without a copy until it changes.
//!
//! `Arc::make_mut` does the same, but proves before every change, by an atomic exchange, that nobody else looks. That waits
//! for all writes before it, which costs a decision more than the change itself. Here the owner knows whether it has lent.

use std::sync::Arc;

#[derive(Debug)]
pub(crate) enum Lent<T> {
    /// Nobody else looks at it.
    Own(T),
    /// Somebody else may look at it.
    Out(Arc<T>),
}

impl<T: Clone + Default> Lent<T> {
    pub(crate) fn get(&self) -> &T {
        match self {
            Self::Own(value) => value,
            Self::Out(value) => value,
        }
    }

    /// The value, to change. Copies it if a reader still looks at it.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        if matches!(self, Self::Out(_)) {
            self.take_back();
        }
        match self {
            Self::Own(value) => value,
            Self::Out(_) => unreachable!("it was just taken back"),
        }
    }

    #[cold]
    fn take_back(&mut self) {
        if let Self::Out(value) = std::mem::replace(self, Self::Own(T::default())) {
            *self = Self::Own(Arc::unwrap_or_clone(value));
        }
    }

    /// The value as it is now, for a reader.
    pub(crate) fn lend(&mut self) -> Arc<T> {
        if let Self::Own(value) = self {
            *self = Self::Out(Arc::new(std::mem::take(value)));
        }
        match self {
            Self::Out(value) => Arc::clone(value),
            Self::Own(_) => unreachable!("it was just lent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_what_it_was_lent() {
        let mut lent = Lent::Own(vec![1]);
        let reader = lent.lend();
        assert!(Arc::ptr_eq(&reader, &lent.lend()), "lending again copies nothing");
        lent.get_mut().push(2);
        assert_eq!((reader.as_slice(), lent.get().as_slice()), ([1].as_slice(), [1, 2].as_slice()));
    }

    #[test]
    fn what_came_back_is_not_copied() {
        let mut lent = Lent::Own(vec![1]);
        let place = lent.get().as_ptr();
        drop(lent.lend());
        lent.get_mut()[0] = 2;
        assert_eq!((lent.get().as_ptr(), lent.get().as_slice()), (place, [2].as_slice()));
    }
}
