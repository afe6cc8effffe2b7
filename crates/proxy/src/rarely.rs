//! Futures that are asked only when something happened to them.
//!
//! A connection waits for its bytes and, at the same time, for what may end it: timers, policies, a drain. Every message
//! wakes all of it. Looking after a timer or a channel that has nothing to say costs more than it seems: it is seldom in
//! the processor's cache.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Rings when the future has something to say.
struct Bell {
    rung: AtomicBool,
    /// Who is to be woken then.
    ear: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        let ear = self.ear.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ear) = &*ear {
            ear.wake_by_ref();
        }
    }
}

/// As the future, but cheap to ask while nothing happens to it. It is pinned already: what is pinned here would be kept
/// twice.
pub(crate) fn rarely<F: Future + Unpin>(future: F) -> Rarely<F> {
    let bell = Arc::new(Bell {
        rung: AtomicBool::new(true),
        ear: Mutex::new(None),
    });
    Rarely {
        future,
        bell,
        known: None,
    }
}

/// What [`rarely`] gives. Written out, because every connection has one: an `async fn` would keep its parts twice.
pub(crate) struct Rarely<F> {
    future: F,
    bell: Arc<Bell>,
    /// Whom the bell wakes, to be looked at without its lock.
    known: Option<Waker>,
}

impl<F: Future + Unpin> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if !self.known.as_ref().is_some_and(|ear| ear.will_wake(cx.waker())) {
            self.known = Some(cx.waker().clone());
            *self.bell.ear.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        }
        if !self.bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&self.bell));
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }
}

#[cfg(test)]
mod tests {
    use super::rarely;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    /// The inner future is asked at the start and when it woke, however often the outer one is.
    #[tokio::test(start_paused = true)]
    async fn only_what_woke_is_asked() {
        let asked = AtomicUsize::new(0);
        let mut sleep = pin!(tokio::time::sleep(Duration::from_secs(5)));
        let inner = pin!(poll_fn(|cx| {
            asked.fetch_add(1, Ordering::Relaxed);
            sleep.as_mut().poll(cx)
        }));
        let mut guarded = pin!(rarely(inner));
        let mut turns = 0;
        poll_fn(|cx| {
            turns += 1;
            assert!(guarded.as_mut().poll(cx).is_pending());
            if turns == 100 {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        guarded.await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    /// Whoever asked last is woken, also when another asked first.
    #[tokio::test]
    async fn a_new_owner_is_woken() {
        let (say, hear) = tokio::sync::oneshot::channel();
        let mut guarded = Box::pin(rarely(hear));
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(guarded.as_mut().poll(&mut nobody).is_pending());
        let elsewhere = tokio::spawn(guarded);
        tokio::task::yield_now().await;
        say.send(7).unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(10), elsewhere).await;
        assert_eq!(heard.unwrap().unwrap().unwrap(), 7);
    }
}
