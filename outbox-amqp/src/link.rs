use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection};
use tokio::time::{sleep, timeout};

use crate::lifeline::Lifeline;
use crate::trouble::Trouble;

/// How long the broker may take to answer something that costs it nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const BLOCKED_POLL: Duration = Duration::from_millis(50);
/// How long after a block the answers to what the broker has already read are waited for.
const BLOCKED_GRACE: Duration = Duration::from_millis(500);

/// An open connection and its idle channels. A channel serves one batch at a time: lapin hands returned
/// messages to whichever confirmation comes next, so two batches on a channel would steal each other's.
pub(crate) struct Link {
    connection: Connection,
    lifeline: Lifeline,
    idle: Mutex<Vec<Channel>>,
    stale: AtomicBool,
}

/// Why a question has no answer.
pub(crate) enum NoAnswer {
    Refused(lapin::Error),
    Blocked,
    Silent,
}

impl From<NoAnswer> for Trouble {
    fn from(reason: NoAnswer) -> Self {
        match reason {
            NoAnswer::Refused(error) => Self::lost(error),
            NoAnswer::Blocked => Self::blocked(),
            NoAnswer::Silent => Self::silent(),
        }
    }
}

impl Link {
    pub(crate) fn new(connection: Connection, lifeline: Lifeline) -> Self {
        Self { connection, lifeline, idle: Mutex::default(), stale: AtomicBool::new(false) }
    }

    /// Whether it can be used, or will be when it is no longer blocked.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_connected() && (self.is_blocked() || !self.stale.load(Ordering::Acquire))
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.status().connected() && !self.lifeline.is_cut()
    }

    /// Whether the broker takes no messages: out of memory or disk.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    pub(crate) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    /// An idle channel in confirm mode, or a new one.
    pub(crate) async fn channel(&self) -> Result<Channel, lapin::Error> {
        while let Some(channel) = self.pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        self.open_channel().await
    }

    pub(crate) async fn open_channel(&self) -> Result<Channel, lapin::Error> {
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Only for a channel with every confirmation in.
    pub(crate) fn give_back(&self, channel: Channel) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
    }

    fn pop(&self) -> Option<Channel> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Whether the broker answers at all, on a channel that is not used for anything else.
    pub(crate) async fn probe(&self) -> Result<(), NoAnswer> {
        self.ask(self.connection.create_channel()).await.map(drop)
    }

    /// Waits for an answer; a broker that gives none although it is not blocked loses the connection.
    pub(crate) async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<T, NoAnswer> {
        tokio::select! {
            answer = timeout(ANSWER_TIMEOUT, question) => match answer {
                Ok(answer) => answer.map_err(NoAnswer::Refused),
                Err(_) => {
                    self.cut();
                    Err(NoAnswer::Silent)
                }
            },
            () = self.stays_blocked() => Err(NoAnswer::Blocked),
        }
    }

    /// Ends when the broker has been blocked for a moment.
    pub(crate) async fn stays_blocked(&self) {
        loop {
            sleep(BLOCKED_POLL).await;
            if self.is_blocked() {
                sleep(BLOCKED_GRACE).await;
                if self.is_blocked() {
                    return;
                }
            }
        }
    }

    /// Not to be used any more once it is unblocked: frames of a given-up batch are still queued in it. It is
    /// kept until then, since a new connection would not be told that the broker is blocked.
    pub(crate) fn set_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Ends it without a word, for a broker that does not answer.
    pub(crate) fn cut(&self) {
        self.lifeline.cut();
    }

    /// Ends it in good order, or else cuts it.
    pub(crate) async fn close(&self) -> Result<(), Trouble> {
        let closing = timeout(ANSWER_TIMEOUT, self.connection.close(200, "OK".into())).await;
        self.cut();
        match closing {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Trouble::lost(error)),
            Err(_) => Err(Trouble::not_closed()),
        }
    }
}
