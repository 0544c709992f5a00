//! Wake-ups that come to a lane from other threads, gathered.
//!
//! To wake a task of another thread is a system call, and the writer answers all of a batch one after the other. So what it wakes
//! is put into the lane's mailbox: only the first of them wakes the lane, which finds the others when it looks.
//!
//! # Invariants
//! - Whoever puts something into an empty mailbox wakes its lane afterwards: nothing lies there unseen.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// The mailbox of this thread, if it is a lane.
    static MINE: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
    /// The same as a number, for those who only compare; 0 for none.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// What waits to be woken on a lane.
pub(super) struct Mailbox {
    /// No other's, and not 0.
    number: usize,
    mail: Mutex<Mail>,
}

#[derive(Default)]
struct Mail {
    woken: Vec<Waker>,
    /// Wakes the lane; `None` before it has looked for the first time.
    carrier: Option<Waker>,
}

impl Mailbox {
    pub(super) fn new(number: usize) -> Arc<Self> {
        Arc::new(Self { number: number.saturating_add(1), mail: Mutex::default() })
    }

    /// Makes it that of this thread.
    pub(super) fn open(self: &Arc<Self>) {
        MINE.set(Some(Arc::clone(self)));
        NUMBER.set(self.number);
    }

    /// Wakes on its lane, for ever, what is put into it.
    pub(super) async fn carry(self: Arc<Self>) {
        let mut woken = Vec::new();
        poll_fn(|context| {
            {
                let mut mail = self.mail();
                mail.carrier.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
                std::mem::swap(&mut mail.woken, &mut woken);
            }
            woken.drain(..).for_each(Waker::wake);
            Poll::<()>::Pending
        })
        .await;
    }

    fn put(&self, waker: Waker) {
        let carrier = {
            let mut mail = self.mail();
            mail.woken.push(waker);
            if mail.woken.len() == 1 { mail.carrier.clone() } else { None }
        };
        if let Some(carrier) = carrier {
            carrier.wake();
        }
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a task: at once on its own lane, by mail from elsewhere.
struct Letter {
    task: Waker,
    mailbox: Arc<Mailbox>,
}

impl Wake for Letter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if NUMBER.get() == self.mailbox.number {
            self.task.wake_by_ref();
        } else {
            self.mailbox.put(self.task.clone());
        }
    }
}

/// A task of a lane that is woken by mail. Elsewhere it is woken as any other.
pub(crate) struct Mailed<F> {
    future: Pin<Box<F>>,
    /// The task's waker, and the one that its future is given.
    letter: Option<(Waker, Waker)>,
}

/// Has a task woken by mail.
pub(crate) fn mailed<F: Future>(future: F) -> Mailed<F> {
    Mailed { future: Box::pin(future), letter: None }
}

impl<F: Future> Future for Mailed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, letter } = &mut *self;
        if !letter.as_ref().is_some_and(|(task, _)| task.will_wake(context.waker())) {
            let Some(mailbox) = MINE.with_borrow(Option::clone) else { return future.as_mut().poll(context) };
            let task = context.waker().clone();
            let by_mail = Waker::from(Arc::new(Letter { task: task.clone(), mailbox }));
            *letter = Some((task, by_mail));
        }
        match letter {
            Some((_, by_mail)) => future.as_mut().poll(&mut Context::from_waker(by_mail)),
            None => future.as_mut().poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Counted {
        fn count(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll<F: Future>(future: &mut Pin<Box<F>>, by: &Arc<Counted>) -> bool {
        future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(by)))).is_ready()
    }

    #[test]
    fn many_wake_ups_from_another_thread_are_one_of_the_lane_and_one_of_each_task() {
        let mailbox = Mailbox::new(0);
        let (lane, tasks): (Arc<Counted>, [Arc<Counted>; 3]) = Default::default();
        let letters: Vec<Waker> = tasks
            .iter()
            .map(|task| {
                let task = Waker::from(Arc::clone(task));
                Waker::from(Arc::new(Letter { task, mailbox: Arc::clone(&mailbox) }))
            })
            .collect();
        let mut carrier = Box::pin(Arc::clone(&mailbox).carry());
        assert!(!poll(&mut carrier, &lane));
        for round in 1..=3 {
            letters.iter().for_each(Waker::wake_by_ref);
            assert_eq!(lane.count(), round, "the first wakes the lane");
            assert_eq!(tasks[2].count(), round - 1, "and the rest waits there");
            assert!(!poll(&mut carrier, &lane));
            assert!(tasks.iter().all(|task| task.count() == round));
        }
        // What is woken before the lane has looked for the first time is found then.
        let early = Mailbox::new(1);
        early.put(Waker::from(Arc::clone(&tasks[0])));
        assert!(!poll(&mut Box::pin(Arc::clone(&early).carry()), &lane));
        assert_eq!(tasks[0].count(), 4);
        // On the lane itself nothing is put anywhere.
        mailbox.open();
        letters[1].wake_by_ref();
        assert_eq!((tasks[1].count(), lane.count()), (4, 3));
    }

    #[test]
    fn no_answer_of_another_thread_is_ever_missed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mailbox = Mailbox::new(0);
        mailbox.open();
        runtime.spawn(Arc::clone(&mailbox).carry());
        let (ask, asked) = std::sync::mpsc::channel::<Vec<tokio::sync::oneshot::Sender<usize>>>();
        let answering = std::thread::spawn(move || {
            for (number, answers) in asked.iter().enumerate() {
                answers.into_iter().for_each(|answer| answer.send(number).unwrap());
            }
        });
        runtime.block_on(async {
            for round in 0..2_000 {
                let (answers, waiting): (Vec<_>, Vec<_>) = (0..8).map(|_| tokio::sync::oneshot::channel()).unzip();
                let waiting: Vec<_> = waiting.into_iter().map(|answer| tokio::spawn(mailed(answer))).collect();
                tokio::task::yield_now().await;
                ask.send(answers).unwrap();
                for answer in waiting {
                    assert_eq!(answer.await.unwrap().unwrap(), round);
                }
            }
        });
        drop(ask);
        answering.join().unwrap();
    }
}
