use std::collections::VecDeque;
use std::time::Duration;

use super::broker::BrokerFault;
use super::subscription::Queue;
use crate::message::Message;
use crate::pattern::Pattern;
use crate::publisher::PublishError;

/// What the broker holds, and what it makes of a message.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub(super) stored: Vec<Message>,
    pub(super) queues: Vec<Queue>,
    pub(super) rules: VecDeque<Rule>,
    pub(super) max_payload: Option<usize>,
    pub(super) away: bool,
    pub(super) releases: u64,
    outages: u64,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) pattern: Pattern,
    pub(super) fault: BrokerFault,
    pub(super) left: usize,
}

/// How publishing a message goes on after the broker has seen it.
pub(super) enum Reply {
    Now(Result<(), PublishError>),
    Delayed(Duration, Ticket),
    /// Stored, and waiting.
    Held(Ticket),
    /// Waiting to be stored.
    Hanging(Ticket),
}

/// What had happened when the message came.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    outages: u64,
    releases: u64,
}

impl Exchange {
    pub(super) fn there(&self) -> Result<(), PublishError> {
        match self.away {
            true => Err(PublishError::unavailable("the broker is away; it may come back")),
            false => Ok(()),
        }
    }

    pub(super) fn go_away(&mut self) {
        self.away = true;
        self.outages += 1;
        self.queues.iter_mut().for_each(Queue::take_back);
    }

    /// A new queue's number.
    pub(super) fn bind(&mut self) -> usize {
        self.queues.push(Queue::new(&self.stored));
        self.queues.len() - 1
    }

    pub(super) fn accept(&mut self, message: &Message) -> Reply {
        if let Err(refused) = self.there().and_then(|()| self.fits(message)) {
            return Reply::Now(Err(refused));
        }
        let ticket = Ticket { outages: self.outages, releases: self.releases };
        let fault = self.fault_for(message);
        if fault.is_none_or(BrokerFault::stores) {
            self.store(message);
        }
        match fault {
            None => Reply::Now(Ok(())),
            Some(BrokerFault::Nack) => failed("the broker refused it; trying again may help"),
            Some(BrokerFault::Unroutable) => failed("no queue is bound; declare one"),
            Some(BrokerFault::LoseConfirm) => failed("no confirmation came; it may be stored"),
            Some(BrokerFault::Reject) => Reply::Now(Err(PublishError::rejected("the broker never takes it"))),
            Some(BrokerFault::DelayConfirm(delay)) => Reply::Delayed(delay, ticket),
            Some(BrokerFault::HoldConfirm) => Reply::Held(ticket),
            Some(BrokerFault::Hang) => Reply::Hanging(ticket),
        }
    }

    fn fits(&self, message: &Message) -> Result<(), PublishError> {
        let bytes = message.payload().len();
        match self.max_payload {
            Some(max) if bytes > max => {
                Err(PublishError::rejected(format!("the payload has {bytes} bytes; the broker takes {max}")))
            }
            _ => Ok(()),
        }
    }

    fn fault_for(&mut self, message: &Message) -> Option<BrokerFault> {
        let matching = |rule: &&mut Rule| rule.left > 0 && rule.pattern.matches(message.biz_type());
        let rule = self.rules.iter_mut().find(matching)?;
        rule.left -= 1;
        Some(rule.fault)
    }

    pub(super) fn store(&mut self, message: &Message) {
        self.stored.push(message.clone());
        self.queues.iter_mut().for_each(|queue| queue.push(message));
    }

    /// What a publisher hears whose connection has been cut since.
    pub(super) fn cut(&self, since: Ticket) -> Option<PublishError> {
        let lost = "the broker went away before it confirmed; the message may be stored";
        (self.outages > since.outages).then(|| PublishError::unavailable(lost))
    }

    /// What a publisher hears who waits for a release.
    pub(super) fn released(&self, since: Ticket) -> Option<Result<(), PublishError>> {
        self.cut(since).map(Err).or_else(|| (self.releases > since.releases).then_some(Ok(())))
    }
}

impl BrokerFault {
    fn stores(self) -> bool {
        matches!(self, Self::LoseConfirm | Self::DelayConfirm(_) | Self::HoldConfirm)
    }
}

fn failed(problem: &str) -> Reply {
    Reply::Now(Err(PublishError::failed(problem)))
}
