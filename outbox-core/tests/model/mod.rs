//! A model of the whole around the real [`apply`]: what can happen to one message.
//!
//! [`apply`]: outbox_core::state::apply

mod consuming;
mod explore;
mod promises;
mod relaying;
mod rows;
mod world;

pub(crate) use explore::{Counterexample, Explored, System, explore};
pub(crate) use relaying::Fate;

use outbox_core::Status;
use rows::{RowEvent, Rows};
use world::World;

const GROUPS: [&str; 2] = ["inventory", "points"];
const RELAYS: usize = 2;

/// What is explored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    /// How many relays run, one or two.
    pub(crate) relays: usize,
    /// How many groups must acknowledge.
    pub(crate) groups: usize,
    /// Whether the writer decided that, or the relay must at confirm.
    pub(crate) decided_at_enqueue: bool,
    pub(crate) consumer: Consumer,
    /// Whether consumers may reject.
    pub(crate) rejects: bool,
    /// Whether anything may go wrong.
    pub(crate) faults: bool,
    pub(crate) flaw: Option<Flaw>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// The marker is written in the transaction of the effect.
    Inbox,
    /// A lease before the handler, a marker after it.
    Dedup,
}

/// What programs get wrong. Each must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The article's: status 1 is written before publishing.
    MarksSentBeforePublishing,
    /// `UPDATE … WHERE id = ?`
    SettlesWhateverTheStatus,
    /// `UPDATE … WHERE id = ? AND status = 0`
    SettlesWithoutToken,
    /// Two relays select the same rows.
    ClaimsDespiteLease,
    /// A claim that only its own process can end.
    ForgetsItsClaim,
    /// A retry without a time.
    GivesUpSilently,
    /// The article's: the marker is set before the handler, and no lease frees it.
    MarksBeforeHandling,
    /// Acknowledges a delivery that somebody else is handling.
    AcknowledgesWhatIsInProgress,
    SendsReceiptFirst,
    /// `received = received + 1` without looking whether the receipt is new.
    CountsReceiptsTwice,
    /// A rejection of an earlier publication fails a row that was sent again.
    RejectsUnfenced,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Claim(usize),
    Renew(usize),
    Publish(usize, Fate),
    Settle(usize),
    CrashRelay(usize),
    Begin(usize),
    Effect(usize),
    Finish(usize),
    HandlerFails(usize),
    CrashConsumer(usize),
    LeaseOfHandlerEnds(usize),
    LeaseOfNobodyEnds(usize),
    Acknowledge(usize),
    Reject(usize),
    RecordReceipt(usize),
    LoseReceipt(usize),
    RecordRejection(usize),
    LoseRejection(usize),
    Pass,
    Redeliver,
    Requeue,
    Discard,
    Archive,
}

/// Where a step leads, `None` if it cannot be taken, or the promise that it breaks.
type Taken = Result<Option<World>, String>;

impl Model {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn steps(&self) -> Vec<Step> {
        let of_relay = |r| {
            let fates = Fate::ALL.map(|fate| Step::Publish(r, fate));
            [Step::Claim(r), Step::Renew(r), Step::Settle(r), Step::CrashRelay(r)].into_iter().chain(fates)
        };
        let of_group = |g| {
            let handling = [Step::Begin(g), Step::Effect(g), Step::Finish(g), Step::HandlerFails(g)];
            let ending = [Step::CrashConsumer(g), Step::LeaseOfHandlerEnds(g), Step::LeaseOfNobodyEnds(g)];
            let saying = [Step::Acknowledge(g), Step::RecordReceipt(g), Step::LoseReceipt(g)];
            let refusing = [Step::Reject(g), Step::RecordRejection(g), Step::LoseRejection(g)];
            handling.into_iter().chain(ending).chain(saying).chain(refusing)
        };
        (0..RELAYS)
            .flat_map(of_relay)
            .chain((0..self.groups).flat_map(of_group))
            .chain([Step::Pass, Step::Redeliver, Step::Requeue, Step::Discard, Step::Archive])
            .filter(|step| self.faults || !step.is_fault())
            .collect()
    }
}

impl Step {
    /// Time passes, and whoever lives goes on; but nobody counts on people, or on a second try.
    fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Claim(_)
                | Self::Publish(_, Fate::Confirmed)
                | Self::Settle(_)
                | Self::Begin(_)
                | Self::Effect(_)
                | Self::Finish(_)
                | Self::LeaseOfNobodyEnds(_)
                | Self::Acknowledge(_)
                | Self::RecordReceipt(_)
                | Self::RecordRejection(_)
                | Self::Pass
                | Self::Archive
        )
    }
}

/// The row and the world around it.
pub(crate) struct Whole {
    model: Model,
    rows: Rows,
    steps: Vec<Step>,
}

impl Whole {
    pub(crate) fn new(model: Model) -> Self {
        Self { model, rows: Rows::new(model), steps: model.steps() }
    }

    fn take(&mut self, world: &World, step: Step) -> Taken {
        match step {
            Step::Claim(r) => self.claim(world, r),
            Step::Renew(r) => self.renew(world, r),
            Step::Publish(r, fate) => self.publish(world, r, fate),
            Step::Settle(r) => self.settle(world, r),
            Step::CrashRelay(r) => self.crash_relay(world, r),
            Step::Begin(g) => self.begin(world, g),
            Step::Effect(g) => self.effect(world, g),
            Step::Finish(g) => self.finish(world, g),
            Step::HandlerFails(g) => self.handler_fails(world, g),
            Step::CrashConsumer(g) => self.crash_consumer(world, g),
            Step::LeaseOfHandlerEnds(g) => self.lease_ends(world, g, true),
            Step::LeaseOfNobodyEnds(g) => self.lease_ends(world, g, false),
            Step::Acknowledge(g) => self.acknowledge(world, g),
            Step::Reject(g) => self.reject(world, g),
            Step::RecordReceipt(g) => self.record_receipt(world, g),
            Step::LoseReceipt(g) => self.lose_receipt(world, g),
            Step::RecordRejection(g) => self.record_rejection(world, g),
            Step::LoseRejection(g) => self.lose_rejection(world, g),
            Step::Pass => self.pass(world),
            Step::Redeliver => self.happen(world, RowEvent::Redeliver),
            Step::Requeue => self.happen(world, RowEvent::Requeue),
            Step::Discard => self.happen(world, RowEvent::Discard),
            Step::Archive => self.happen(world, RowEvent::Archive),
        }
    }

    /// The world after an event of the row; `None` if it is stale, or the row is in the history.
    fn happen(&mut self, world: &World, event: RowEvent) -> Taken {
        let Some(row) = world.row else { return Ok(None) };
        let Some(moved) = self.rows.happen(row, event)? else { return Ok(None) };
        let mut next = World { row: moved.row, ..*world };
        if moved.has_new_claim_no {
            next.grow_older();
        }
        Ok(Some(next))
    }

    fn checked(&self, world: World) -> Result<World, String> {
        if let Some(row) = world.row {
            self.model.world_promises(&world, self.rows.facts(row))?;
        }
        Ok(world.canonical())
    }
}

impl System for Whole {
    type State = World;
    type Step = Step;

    fn initial(&mut self) -> Result<World, String> {
        self.rows.initial().map(World::new)
    }

    fn steps(&mut self, from: &World, taken: &mut Vec<explore::Taken<Self>>) {
        for index in 0..self.steps.len() {
            let step = self.steps[index];
            if let Some(end) = self.take(from, step).transpose() {
                taken.push((step, end.and_then(|world| self.checked(world))));
            }
        }
    }

    /// Delivered, or where a person sees it.
    fn is_good_end(&self, world: &World) -> bool {
        world.row.is_none_or(|row| self.rows.facts(row).status != Status::Pending)
    }

    fn is_fault(&self, step: Step) -> bool {
        step.is_fault()
    }
}
