use std::sync::Arc;

use lapin::Channel;
use outbox_core::{Message, PublishError};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::blame::{guilty, is_blamed};
use crate::ending::{Ending, ending, ends_channel_only, spoken};
use crate::flight::{Cargo, Flight};
use crate::judge::{Judged, Verdict, judge};
use crate::link::{Link, NoAnswer};
use crate::parcel::Parcel;
use crate::route::route;
use crate::session::Session;
use crate::trouble::Trouble;

/// How often a group is sent again because its channel ended for a reason that lies in no message.
const INTERRUPTIONS: usize = 3;
/// Into how many parts a group is split to find the message for which the broker closes the channel.
const PARTS: usize = 32;

/// Messages of one channel, by their places in the batch.
type Group = Vec<usize>;

/// The messages of one call, on their way to a verdict each.
pub(crate) struct Batch<'a> {
    session: &'a Session,
    deadline: Instant,
    parcels: Vec<Parcel<'a>>,
    verdicts: Vec<Option<Verdict>>,
    interruptions: usize,
    /// Whether the message may have reached the broker.
    sent: Vec<bool>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(session: &'a Session, messages: &'a [Message]) -> Self {
        let (config, router) = (&session.config, &session.config.router);
        Self {
            session,
            deadline: Instant::now() + config.confirm_timeout,
            parcels: messages.iter().map(|message| Parcel::new(message, &route(router, message))).collect(),
            verdicts: messages.iter().map(|_| None).collect(),
            interruptions: 0,
            sent: vec![false; messages.len()],
        }
    }

    pub(crate) async fn run(mut self) -> Vec<Verdict> {
        let trouble = self.deliver().await.err().unwrap_or_else(Trouble::late);
        let verdicts = self.verdicts.into_iter().zip(self.sent);
        verdicts.map(|(verdict, sent)| verdict.unwrap_or_else(|| Err(trouble.of(sent)))).collect()
    }

    /// Gives each message its verdict, or says what is wrong with the rest.
    async fn deliver(&mut self) -> Result<(), Trouble> {
        let _turn = timeout_at(self.deadline, self.session.turn()).await.map_err(|_| Trouble::busy())?;
        let mut groups = vec![(0..self.parcels.len()).collect()];
        while let Some(group) = groups.pop() {
            groups.extend(self.attempt(group).await?);
        }
        Ok(())
    }

    /// Sends a group, and returns what is to be sent again.
    async fn attempt(&mut self, group: Group) -> Result<Vec<Group>, Trouble> {
        if group.is_empty() {
            return Ok(Vec::new());
        }
        let link = self.link().await?;
        let channel = match link.ask(link.channel()).await {
            Ok(channel) => channel,
            Err(NoAnswer::Refused(error)) => return self.interrupted(group, error),
            Err(reason) => return Err(reason.into()),
        };
        let error = self.send(&group, &link, channel).await;
        let rest = self.open(group);
        match error {
            _ if rest.is_empty() => Ok(Vec::new()),
            Some(error) => self.broken_off(rest, error, &link),
            None => Err(self.timed_out(&link).await),
        }
    }

    async fn link(&self) -> Result<Arc<Link>, Trouble> {
        let link = timeout_at(self.deadline, self.session.link()).await.map_err(|_| Trouble::late())??;
        if link.is_blocked() { Err(Trouble::blocked()) } else { Ok(link) }
    }

    /// Waits for the confirmations, and enters the verdicts; why the channel ended, if it did.
    async fn send(&mut self, group: &Group, link: &Link, channel: Channel) -> Option<lapin::Error> {
        let cargo = self.pack(group, link.frame_max());
        let judged = self.fly(cargo, link, &channel).await;
        for (index, verdict) in judged.verdicts {
            self.verdicts[index] = Some(verdict);
        }
        if judged.clean {
            link.give_back(channel);
        }
        judged.error
    }

    /// Encodes what can be encoded, and rejects the rest.
    fn pack(&mut self, group: &Group, frame_max: u32) -> Vec<Cargo<'a>> {
        let mut cargo = Vec::with_capacity(group.len());
        for &index in group {
            let parcel = &self.parcels[index];
            match parcel.envelope(frame_max) {
                Ok(envelope) => cargo.push(Cargo { index, envelope, body: parcel.body() }),
                Err(error) => self.verdicts[index] = Some(Err(error)),
            }
        }
        cargo
    }

    async fn fly(&mut self, cargo: Vec<Cargo<'_>>, link: &Link, channel: &Channel) -> Judged {
        let sent = cargo.len();
        let mut flight = Flight::default();
        tokio::select! {
            () = flight.run(channel, cargo) => {}
            () = link.stays_blocked() => {}
            () = sleep_until(self.deadline) => {}
        }
        let handed_over = flight.handed_over().to_vec();
        let landed = flight.land().await;
        handed_over.into_iter().for_each(|index| self.sent[index] = true);
        judge(landed, sent, &self.parcels)
    }

    fn broken_off(&mut self, rest: Group, error: lapin::Error, link: &Link) -> Result<Vec<Group>, Trouble> {
        tracing::warn!(%error, unconfirmed = rest.len(), "a batch was broken off");
        match ending(&error) {
            Ending::ForAMessage => {
                let groups = self.blame(rest, &error);
                if self.is_late() { Err(Trouble::unfinished()) } else { Ok(groups) }
            }
            Ending::OfTheChannel if link.is_connected() || spoken(&error).is_some() => {
                self.interrupted(rest, error)
            }
            _ => Err(Trouble::lost(error)),
        }
    }

    fn interrupted(&mut self, rest: Group, error: lapin::Error) -> Result<Vec<Group>, Trouble> {
        self.interruptions += 1;
        if self.interruptions > INTERRUPTIONS || self.is_late() {
            Err(Trouble::lost(error))
        } else {
            Ok(vec![rest])
        }
    }

    /// Gives the guilty their verdict and returns the others; in parts, when nobody can be named.
    fn blame(&mut self, rest: Group, error: &lapin::Error) -> Vec<Group> {
        let before = rest.len();
        for &index in &rest {
            self.verdicts[index] = self.accuse(index, error, before == 1).map(Err);
        }
        let rest = self.open(rest);
        let part = if rest.len() < before { before } else { (before / PARTS).max(1) };
        rest.chunks(part).rev().map(<[usize]>::to_vec).collect()
    }

    fn accuse(&self, index: usize, error: &lapin::Error, alone: bool) -> Option<PublishError> {
        let (parcel, words) = (&self.parcels[index], spoken(error)?);
        // The end of the connection hits all calls: whoever was not alone on it may be a bystander.
        let alone = alone && (self.session.is_only_call() || ends_channel_only(words));
        (alone || is_blamed(words, parcel)).then(|| guilty(words, parcel))
    }

    /// Asks the broker whether it is well, unless it has said that it is not.
    async fn timed_out(&self, link: &Link) -> Trouble {
        let answer = if link.is_blocked() { Err(NoAnswer::Blocked) } else { link.probe().await };
        match answer {
            Ok(()) => Trouble::unconfirmed(self.session.config.confirm_timeout),
            Err(reason) => {
                link.set_stale();
                reason.into()
            }
        }
    }

    /// Those that have no verdict yet.
    fn open(&self, group: Group) -> Group {
        group.into_iter().filter(|index| self.verdicts[*index].is_none()).collect()
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}
