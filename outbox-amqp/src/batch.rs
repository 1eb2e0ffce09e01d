use std::sync::Arc;

use lapin::Channel;
use outbox_core::{Message, PublishError};
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use crate::envelope::Envelope;
use crate::error::{Trouble, is_soft, spoken};
use crate::flight::{Cargo, Flight};
use crate::link::{Link, NoAnswer};
use crate::session::Session;
use crate::verdict::{Verdict, Verdicts, guilty, is_blamed};

/// How often a group is sent again because its channel ended for a reason that lies in no message.
const INTERRUPTIONS: usize = 3;
/// Into how many parts a group is split to find the message for which the broker closes the channel.
const PARTS: usize = 32;

/// The messages of one call, on their way to a verdict each.
pub(crate) struct Batch<'a> {
    session: &'a Session,
    deadline: Instant,
    messages: &'a [Message],
    /// `None` for a message that cannot be encoded and has its verdict already.
    envelopes: Vec<Option<Envelope>>,
    verdicts: Vec<Option<Verdict>>,
}

/// How sending a group ended.
enum End {
    /// Each message has its verdict.
    Done,
    /// The broker ended the channel or the connection, perhaps because of a message.
    BrokenOff(lapin::Error),
    /// The channel ended, and no message can be the cause.
    Interrupted(lapin::Error),
    /// Some confirmations have not come.
    TimedOut(Arc<Link>),
    /// The broker cannot be used now.
    Unavailable(Trouble),
}

impl<'a> Batch<'a> {
    pub(crate) fn new(session: &'a Session, messages: &'a [Message]) -> Self {
        let deadline = Instant::now() + session.config.confirm_timeout;
        let mut batch = Self { session, deadline, messages, envelopes: Vec::new(), verdicts: Vec::new() };
        for message in messages {
            let envelope = Envelope::new(message, &session.config.router.route(message));
            let (envelope, verdict) = match envelope {
                Ok(envelope) => (Some(envelope), None),
                Err(error) => (None, Some(Err(error))),
            };
            batch.envelopes.push(envelope);
            batch.verdicts.push(verdict);
        }
        batch
    }

    pub(crate) async fn run(mut self) -> Vec<Verdict> {
        let Ok(_turn) = timeout_at(self.deadline, self.session.turn()).await else {
            return self.finish(|| Trouble::busy().unavailable());
        };
        let mut interruptions = 0;
        let mut groups = vec![self.open((0..self.messages.len()).collect())];
        while let Some(group) = groups.pop() {
            let end = self.attempt(&group).await;
            let rest = self.open(group);
            match end {
                End::Done => {}
                End::BrokenOff(error) => groups.extend(self.blame(rest, &error)),
                End::Interrupted(_) if interruptions < INTERRUPTIONS => {
                    interruptions += 1;
                    groups.push(rest);
                }
                End::Interrupted(error) => return self.finish(|| Trouble::lost(error.clone()).unavailable()),
                End::TimedOut(link) => return self.time_out(&link).await,
                End::Unavailable(trouble) => return self.finish(|| trouble.unavailable()),
            }
        }
        self.finish(|| Trouble::busy().unavailable())
    }

    async fn attempt(&mut self, group: &[usize]) -> End {
        if group.is_empty() {
            return End::Done;
        }
        let link = match self.link().await {
            Ok(link) => link,
            Err(trouble) => return End::Unavailable(trouble),
        };
        self.reject_long_frames(group, link.frame_max());
        match link.ask(link.channel()).await {
            Ok(channel) => self.send(group, link, channel).await,
            Err(NoAnswer::Refused(error)) => End::Interrupted(error),
            Err(reason) => End::Unavailable(reason.into()),
        }
    }

    async fn link(&self) -> Result<Arc<Link>, Trouble> {
        let link = timeout_at(self.deadline, self.session.link()).await.map_err(|_| Trouble::late())??;
        if link.is_blocked() { Err(Trouble::blocked()) } else { Ok(link) }
    }

    async fn send(&mut self, group: &[usize], link: Arc<Link>, channel: Channel) -> End {
        let verdicts = self.fly(group, &link, &channel).await;
        for (index, verdict) in verdicts.known {
            self.verdicts[index] = Some(verdict);
        }
        if verdicts.clean {
            link.give_back(channel);
        }
        match verdicts.error {
            Some(error) => ended(error, &link),
            None if group.iter().all(|index| self.verdicts[*index].is_some()) => End::Done,
            None if link.is_blocked() => {
                link.set_stale();
                End::Unavailable(Trouble::blocked())
            }
            None => End::TimedOut(link),
        }
    }

    async fn fly(&self, group: &[usize], link: &Link, channel: &Channel) -> Verdicts {
        let cargo: Vec<Cargo<'_>> = group.iter().filter_map(|index| self.cargo(*index)).collect();
        let sent = cargo.len();
        let mut flight = Flight::default();
        tokio::select! {
            () = flight.run(channel, cargo) => {}
            () = link.stays_blocked() => {}
            () = sleep_until(self.deadline) => {}
        }
        Verdicts::new(flight.land().await, sent, |index| self.envelopes[index].as_ref())
    }

    fn cargo(&self, index: usize) -> Option<Cargo<'_>> {
        let envelope = self.envelopes[index].as_ref().filter(|_| self.verdicts[index].is_none())?;
        Some(Cargo { index, envelope, body: self.messages[index].payload().as_bytes() })
    }

    fn reject_long_frames(&mut self, group: &[usize], frame_max: u32) {
        for &index in group {
            if let Some(Err(error)) = self.envelopes[index].as_ref().map(|e| e.check_frame(frame_max)) {
                self.verdicts[index] = Some(Err(error));
            }
        }
    }

    /// Gives the guilty their verdict and returns what to send again, in groups.
    fn blame(&mut self, rest: Vec<usize>, error: &lapin::Error) -> Vec<Vec<usize>> {
        let Some(words) = spoken(error) else { return vec![rest] };
        let single = rest.len() == 1;
        let mut found = false;
        for &index in &rest {
            let Some(cargo) = self.cargo(index) else { continue };
            if single || is_blamed(words, cargo.envelope, cargo.body) {
                self.verdicts[index] = Some(Err(guilty(words, cargo.envelope)));
                found = true;
            }
        }
        if found {
            return vec![self.open(rest)];
        }
        rest.chunks((rest.len() / PARTS).max(1)).map(<[usize]>::to_vec).collect()
    }

    /// Those of `group` that have no verdict yet.
    fn open(&self, group: Vec<usize>) -> Vec<usize> {
        group.into_iter().filter(|index| self.verdicts[*index].is_none()).collect()
    }

    async fn time_out(self, link: &Link) -> Vec<Verdict> {
        let limit = self.session.config.confirm_timeout;
        match link.probe().await.map_err(Trouble::from) {
            Ok(()) => self.finish(|| unconfirmed(limit)),
            Err(trouble) => {
                link.set_stale();
                self.finish(|| trouble.unavailable())
            }
        }
    }

    fn finish(self, rest: impl Fn() -> PublishError) -> Vec<Verdict> {
        self.verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(|| Err(rest()))).collect()
    }
}

fn unconfirmed(limit: Duration) -> PublishError {
    PublishError::failed(format!(
        "not confirmed within {limit:?}, though RabbitMQ answers: a queue may lack its majority or be \
         overloaded; it may have been stored all the same, and is sent again"
    ))
}

/// What the end of a channel means.
fn ended(error: lapin::Error, link: &Link) -> End {
    match spoken(&error).map(|words| (is_soft(words), words.get_id())) {
        Some((true, _)) => End::BrokenOff(error),
        // "Channel error": frames that lapin still had for a channel that the broker closed just before.
        Some((false, 504)) => End::Interrupted(error),
        Some((false, 501..=599)) => End::BrokenOff(error),
        Some(_) => End::Unavailable(Trouble::lost(error)),
        None if link.is_connected() => End::Interrupted(error),
        None => End::Unavailable(Trouble::lost(error)),
    }
}
